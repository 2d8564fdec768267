// What `serving.py` does for peers in Python, for graphile-worker: WHAT DSN, with the peers' packages in PEERS_NODE.
"use strict";

const { createRequire } = require("node:module");
const path = require("node:path");
const readline = require("node:readline");

const fromPeers = createRequire(path.join(process.env.PEERS_NODE, "package.json"));
const { Logger, makeWorkerUtils, run, runMigrations } = fromPeers("graphile-worker");

const [what, connectionString] = process.argv.slice(2);
const logger = new Logger(() => () => {});
const BURST_NS = 500_000_000n;

async function serve(body) {
  await run({
    taskList: { noop: () => body() },
    preset: {
      worker: {
        connectionString,
        logger,
        concurrentJobs: 24,
        maxPoolSize: 10,
        localQueue: { size: 500 },
        completeJobBatchDelay: 0,
        failJobBatchDelay: 0,
      },
    },
  });
}

async function produce() {
  const utils = await makeWorkerUtils({ connectionString, logger });
  const forms = {
    single: async (count) => {
      for (let n = 0; n < count; n++) await utils.addJob("noop", { n });
    },
    bulk: async (count) => {
      await utils.addJobs(Array.from({ length: count }, (_, n) => ({ identifier: "noop", payload: { n } })));
    },
  };
  await forms.single(1);
  console.log("ready");
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [form, count] = line.split(" ");
    const began = process.hrtime.bigint();
    await forms[form](Number(count));
    console.log(`${began} ${process.hrtime.bigint()}`);
  }
  await utils.release();
}

let last = 0n;
const WHAT = {
  prepare: () => runMigrations({ connectionString, logger }),
  produce,
  // The first body of each burst, and each body.
  bursts: () =>
    serve(() => {
      const now = process.hrtime.bigint();
      if (now - last > BURST_NS) console.log(String(now));
      last = now;
    }),
  moments: () => serve(() => console.log(String(process.hrtime.bigint()))),
};

WHAT[what]().then(
  () => undefined,
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
