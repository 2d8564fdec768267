-- The six roles of queue_workflows, once per server; then, in the application's database, the migrator's right to
-- create tables. Run it as a superuser, or as one who may CREATE ROLE and owns the database. Safe to run again.
--
-- They are group roles: nobody logs in as them. Give them to the users of your deployment:
--     GRANT qwf_worker TO film_worker;
--     GRANT qwf_migrator TO film_deploy;  ALTER ROLE film_deploy SET role = 'qwf_migrator';
-- The last line lets every table belong to the group, whichever user happened to run the migration.

DO $$
DECLARE
    wanted text;
BEGIN
    FOREACH wanted IN ARRAY ARRAY[
        'qwf_migrator', 'qwf_orchestrator', 'qwf_scheduler', 'qwf_worker', 'qwf_producer', 'qwf_reader'
    ] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = wanted) THEN
            EXECUTE format('CREATE ROLE %I NOLOGIN', wanted);
        END IF;
    END LOOP;
END
$$;

-- A migration makes tables, sequences and functions in this schema, and owns them.
GRANT USAGE, CREATE ON SCHEMA public TO qwf_migrator;
GRANT USAGE ON SCHEMA public TO qwf_orchestrator, qwf_scheduler, qwf_worker, qwf_producer, qwf_reader;

-- A scheduler sweeps up after workers as each of them does, and so may do what they may.
GRANT qwf_worker TO qwf_scheduler;
