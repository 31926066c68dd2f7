// graphile-worker, with its own runner.
//   setup      creates its schema
//   work N     runs tasks that do nothing until N are done: prints tasks a second, from the first one on
//   listen     prints "ready" and then, for each task, its number and the time on CLOCK_MONOTONIC
import { Logger, run, runMigrations } from "graphile-worker";

const [command, count] = process.argv.slice(2);
const connectionString = `postgres:///${process.env.PGDATABASE}?host=${process.env.PGHOST}&user=${process.env.PGUSER}`;
const now = () => Number(process.hrtime.bigint()) / 1e9;
const logger = new Logger(() => (level, message) => level === "error" && console.error(message));

const start = (worker, task) =>
  run({ preset: { worker: { connectionString, ...worker } }, logger, taskList: { bench: task }, noHandleSignals: true });

if (command === "setup") {
  await runMigrations({ connectionString, logger });
} else if (command === "work") {
  let first, finish, done = 0;
  const finished = new Promise((resolve) => (finish = resolve));
  const runner = await start(
    { concurrentJobs: 24, maxPoolSize: 24, localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 },
    async () => {
      first ??= now();
      if (++done === Number(count)) finish(now());
    });
  const last = await finished;
  await runner.stop();
  console.log(done / (last - first));
} else if (command === "listen") {
  let ready = false;
  process.on("SIGTERM", () => process.exit(0));
  await start({ concurrentJobs: 1, maxPoolSize: 4 }, async ({ n }) => {
    const at = now();
    if (n > 0) console.log(`${n} ${at}`);
    else if (!ready) console.log("ready");
    ready = true;
  });
}
