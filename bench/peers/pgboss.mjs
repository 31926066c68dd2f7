// pg-boss, with its own runner.
//   setup      creates its schema and a queue
//   insert     prints its SQL for one job, with :payload for its data
//   listen     prints "ready" and then, for each job, its number and the time on CLOCK_MONOTONIC
import PgBoss from "pg-boss";
import plans from "pg-boss/src/plans.js";

const [command] = process.argv.slice(2);
const connectionString = `postgres:///${process.env.PGDATABASE}?host=${process.env.PGHOST}&user=${process.env.PGUSER}`;
const now = () => Number(process.hrtime.bigint()) / 1e9;
const boss = () => new PgBoss({ connectionString, schedule: false }).on("error", console.error);

if (command === "setup") {
  const it = boss();
  await it.start();
  await it.createQueue("bench");
  await it.stop({ graceful: false, wait: true });
  process.exit(0);
} else if (command === "insert") {
  console.log(plans.insertJob("pgboss").replace(/\$(\d+)/g, (_, n) => ({ 2: "'bench'", 3: ":payload" })[n] ?? "NULL").trim());
} else if (command === "listen") {
  let ready = false;
  process.on("SIGTERM", () => process.exit(0));
  const it = boss();
  await it.start();
  await it.work("bench", { pollingIntervalSeconds: 0.5, batchSize: 50 }, async (jobs) => {
    const at = now();
    for (const { data } of jobs) {
      if (data.n > 0) console.log(`${data.n} ${at}`);
      else if (!ready) { console.log("ready"); ready = true; }
    }
  });
}
