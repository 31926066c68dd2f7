// sender.mjs ENDPOINT URL N: sends N messages of 199 bytes, of 1,000 groups, to a FIFO queue, over 16 connections in batches of
// 10, as fast as it can and unsigned. Prints messages a second.
import http from "node:http";

const [endpoint, url, count] = process.argv.slice(2);
const agent = new http.Agent({ keepAlive: true, maxSockets: 16 });
const text = (StringValue) => ({ DataType: "String", StringValue });
const attributes = {
  task_type: text("bench"),
  task_uid: text("01234567-89ab-cdef-0123-456789abcdef"),
  enqueued_at: text("2026-01-31T12:34:56.789012Z"),
};
const body = `{"order": 1234567, "note": "${"x".repeat(169)}"}`;

const post = (entries) =>
  new Promise((resolve, reject) => {
    const request = http.request(endpoint, {
      method: "POST",
      agent,
      headers: { "content-type": "application/x-amz-json-1.0", "x-amz-target": "AmazonSQS.SendMessageBatch" },
    }, (response) => {
      let answer = "";
      response.on("data", (data) => (answer += data));
      response.on("end", () => (response.statusCode === 200 && !JSON.parse(answer).Failed?.length ? resolve() : reject(new Error(answer))));
    });
    request.on("error", reject);
    request.end(JSON.stringify({ QueueUrl: url, Entries: entries }));
  });

let n = 0;
async function loop() {
  while (n < Number(count)) {
    const first = n;
    n += 10;
    await post(Array.from({ length: 10 }, (_, i) => ({
      Id: String(i),
      MessageBody: body,
      MessageGroupId: `g${(first + i) % 1000}`,
      MessageDeduplicationId: `d${first + i}`,
      MessageAttributes: attributes,
    })));
  }
}

const start = process.hrtime.bigint();
await Promise.all(Array.from({ length: 16 }, loop));
console.log(n / (Number(process.hrtime.bigint() - start) / 1e9));
agent.destroy();
