-- What each role may do, table by table. Run it as qwf_migrator, after every `qwf db upgrade`: a new revision may bring
-- tables and columns that this file of the same version names. It takes back what an older version of it granted.

BEGIN;

REVOKE ALL ON
    workflow_runs, workflow_nodes, workflow_node_jobs, workflow_input_submissions, workflow_dispatch_events, ingest_jobs,
    worker_heartbeats, worker_control, worker_control_clock, audit_log, concurrency_limits, limit_slots, rate_limits,
    app_declarations, limit_declarations, task_declarations, adapted_limits, schedules, hook_records, machines, binaries,
    host_hardware, host_hardware_history, worker_code, model_memory, retention_marks, durable_steps, durable_events, queue_schema_version,
    ingest_jobs_history, history_modes
FROM qwf_orchestrator, qwf_scheduler, qwf_worker, qwf_producer, qwf_reader;
REVOKE ALL ON ingest_jobs_and_history FROM qwf_orchestrator, qwf_scheduler, qwf_worker, qwf_producer, qwf_reader;
REVOKE ALL ON SEQUENCE
    workflow_node_jobs_position_seq, ingest_jobs_position_seq, worker_control_version_seq
FROM qwf_orchestrator, qwf_scheduler, qwf_worker, qwf_producer, qwf_reader;

-- Everybody: is the schema the one that this code knows?
GRANT SELECT ON queue_schema_version TO qwf_orchestrator, qwf_worker, qwf_producer, qwf_reader;

-- The wake triggers run with the rights of whoever inserts or requeues.
GRANT EXECUTE ON FUNCTION
    qwf_wake_class(), qwf_wake_key(text), qwf_wake_inserted(), qwf_wake_requeued(), qwf_wake_dispatch(), qwf_wake_watcher(),
    qwf_wake_waiting(), qwf_front_room(text, text, integer)
TO qwf_orchestrator, qwf_worker, qwf_producer;
-- Whoever takes slots of a limit, or shows it.
GRANT EXECUTE ON FUNCTION qwf_cap(text) TO qwf_orchestrator, qwf_worker, qwf_reader;


-- Reader: dashboards, `qwf explain`. Sees payloads, writes nothing.

GRANT SELECT ON
    workflow_runs, workflow_nodes, workflow_node_jobs, workflow_input_submissions, workflow_dispatch_events, ingest_jobs,
    worker_heartbeats, worker_control, worker_control_clock, audit_log, concurrency_limits, limit_slots, rate_limits,
    app_declarations, limit_declarations, task_declarations, adapted_limits, schedules, hook_records, machines, binaries,
    host_hardware, host_hardware_history, worker_code, model_memory, retention_marks, durable_steps, durable_events, ingest_jobs_history, ingest_jobs_and_history,
    history_modes
TO qwf_reader;


-- Producer: enqueues ingest jobs, starts runs, answers parked nodes. Of what is there it may see the keys that make
-- enqueueing idempotent, and nothing of anybody's payload, state or result. It cannot write a row that looks claimed
-- or finished: those columns are not among its own, and CHECK constraints tie the status to them. How many jobs of a
-- limit's key wait it learns from a function that looks for it, `qwf_front_room`.

GRANT INSERT (
    task_name, queue, reason, args, dedupe_key, status, position, priority, run_at, max_attempts, backoff_s,
    limit_key, hold_reason, hold_key, timeout_s, stall_timeout_s, host_lock, traceparent, max_crashes, at_most_once
), SELECT (id, task_name, dedupe_key, position) ON ingest_jobs TO qwf_producer;
GRANT USAGE ON SEQUENCE ingest_jobs_position_seq TO qwf_producer;
-- It may emit an event, and see none.
GRANT INSERT (name, payload), SELECT (id) ON durable_events TO qwf_producer;
-- By one call of SQL, with these rights of the caller's own.
GRANT EXECUTE ON FUNCTION qwf_enqueue(text, text, jsonb, jsonb) TO qwf_producer;
-- Whether one like it waits or runs it learns, as an id, from a function that looks for it, and changes one that waits.
GRANT EXECUTE ON FUNCTION
    qwf_check_job(text, text, jsonb, jsonb), qwf_unique_key(jsonb, text, jsonb),
    qwf_unique_place(text, text, jsonb, jsonb, timestamptz, smallint)
TO qwf_producer;

GRANT INSERT (
    id, workflow_name, mode, spec, spec_hash, inputs, priority, dedupe_key, labels, parcel_id, traceparent,
    max_open_runs, capped_by, set_up_by
), SELECT (id, workflow_name, dedupe_key) ON workflow_runs TO qwf_producer;

GRANT INSERT (run_id, node_id, payload, submitted_by), SELECT (id) ON workflow_input_submissions TO qwf_producer;


-- Worker: claims, runs and finishes jobs of either family, and sweeps up after other workers. It changes what became
-- of a job, never what was asked for, but that a job which begins has the rules of its function, its key and its lock. A task may enqueue: grant qwf_producer as well to workers whose tasks do.

GRANT SELECT, UPDATE (
    status, hold_reason, hold_key, past_holds, run_at, position, attempt, failures, crash_count, suspect,
    claimed_by, lease_expires_at, progress, errors, cancel_requested_at, started_at, finished_at, result,
    max_crashes, at_most_once, max_attempts, begun_generation, limit_key, host_lock
) ON ingest_jobs TO qwf_worker;
GRANT SELECT ON ingest_jobs_and_history TO qwf_worker;
GRANT SELECT, UPDATE (
    status, hold_reason, hold_key, past_holds, run_at, position, attempt, failures, crash_count, suspect,
    claimed_by, lease_expires_at, progress, errors, cancel_requested_at, started_at, finished_at,
    expires_at, context_delta, pinned_host, max_crashes, at_most_once, max_attempts, begun_generation
) ON workflow_node_jobs TO qwf_worker;
-- A retry that is due goes to the end of its priority.
GRANT USAGE ON SEQUENCE ingest_jobs_position_seq, workflow_node_jobs_position_seq TO qwf_worker;
-- The run's spec and inputs, and what became of the nodes that a node refers to; a hook run is pinned to the host of its
-- first claim, or goes by the mark of the directory that hosts share.
GRANT SELECT, UPDATE (pinned_host, labels) ON workflow_runs TO qwf_worker;
GRANT SELECT ON workflow_nodes TO qwf_worker;
-- The end of a node and its event are one transaction.
GRANT INSERT, SELECT ON workflow_dispatch_events TO qwf_worker;
GRANT SELECT, INSERT, UPDATE, DELETE ON worker_heartbeats, limit_slots TO qwf_worker;
GRANT SELECT ON worker_control, worker_control_clock, concurrency_limits TO qwf_worker;
-- The buckets are the workers'; who set a rule and why is not theirs to say.
GRANT SELECT, INSERT (rate_key, tokens_per_s, burst, tokens), UPDATE (
    tokens_per_s, burst, tokens, refilled_at, blocked_until
) ON rate_limits TO qwf_worker;
-- What its code declares of limits and tasks, in the name of its app, and what limits have adapted to. What an operator
-- sets is not its to say.
GRANT SELECT, INSERT, UPDATE, DELETE ON
    app_declarations, limit_declarations, task_declarations, adapted_limits
TO qwf_worker;
GRANT SELECT, INSERT, UPDATE ON machines, binaries TO qwf_worker;
-- A record that nothing could be made of is told so beside it.
GRANT SELECT, INSERT, UPDATE (warning) ON hook_records TO qwf_worker;
-- A hook that finds further pages starts runs below its own; whose hooks do needs qwf_producer as well, which has the rest.
GRANT INSERT (
    parent_run_id, parent_node_job_id, depth, capped_by, hold_reason, set_up_by, pinned_host
) ON workflow_runs TO qwf_worker;
-- What durable functions did and wait for, and the events that they take. One that spawns needs qwf_producer as well.
GRANT SELECT, INSERT, UPDATE, DELETE ON durable_steps, durable_events TO qwf_worker;
GRANT UPDATE (spawned_by) ON ingest_jobs TO qwf_worker;
-- What its code knows, and which versions of the app knew a task before.
GRANT SELECT, INSERT, UPDATE, DELETE ON worker_code TO qwf_worker;
-- What models took of its device.
GRANT SELECT, INSERT, UPDATE, DELETE ON model_memory TO qwf_worker;
-- What a supervisor sees of its machine.
GRANT SELECT, INSERT, UPDATE, DELETE ON host_hardware, host_hardware_history TO qwf_worker;


-- Scheduler: puts what the host app declares into the schedules, moves them on, and enqueues the jobs of their ticks. What
-- it needs to sweep it has as a member of qwf_worker. An operator's pause is not its to take back.

GRANT SELECT, INSERT (
    name, cron, timezone, catch_up, catch_up_cap, jitter_s, task_name, queue, args, priority, limit_key, host_lock,
    declared, declared_by, declaration, declared_until
), UPDATE (
    cron, timezone, catch_up, catch_up_cap, jitter_s, task_name, queue, args, priority, limit_key, host_lock, declared,
    declared_by, declaration, declared_until, last_tick_at, next_tick_at, updated_at
) ON schedules TO qwf_scheduler;
GRANT INSERT (
    schedule_name, tick_at, task_name, queue, reason, args, priority, limit_key, max_attempts, backoff_s, timeout_s,
    stall_timeout_s, run_at, status, position, hold_reason, hold_key, traceparent, host_lock, max_crashes, at_most_once
) ON ingest_jobs TO qwf_scheduler;


-- Orchestrator and operator: everything that is rows, nothing that is schema.

GRANT SELECT, INSERT, UPDATE, DELETE ON
    workflow_runs, workflow_nodes, workflow_node_jobs, workflow_input_submissions, workflow_dispatch_events, ingest_jobs,
    worker_heartbeats, worker_control, worker_control_clock, concurrency_limits, limit_slots, rate_limits,
    app_declarations, limit_declarations, task_declarations, adapted_limits, schedules, hook_records, machines, binaries,
    host_hardware, host_hardware_history, worker_code, model_memory, retention_marks, durable_steps, durable_events
TO qwf_orchestrator;
-- What is over may lie by months: it reads there, and moves, brings back and drops by functions with their owner's
-- rights, as to make and drop a month is to make and drop a table.
GRANT SELECT ON ingest_jobs_history, ingest_jobs_and_history TO qwf_orchestrator;
GRANT SELECT, INSERT, UPDATE ON history_modes TO qwf_orchestrator;
GRANT EXECUTE ON FUNCTION
    qwf_history_move(timestamptz, timestamptz), qwf_history_bring_back(bigint[]), qwf_history_bring_some_back(bigint),
    qwf_history_drop_month(timestamptz)
TO qwf_orchestrator;
-- What was done stays written.
GRANT SELECT, INSERT ON audit_log TO qwf_orchestrator;
GRANT USAGE ON SEQUENCE
    workflow_node_jobs_position_seq, ingest_jobs_position_seq, worker_control_version_seq
TO qwf_orchestrator;

COMMIT;
