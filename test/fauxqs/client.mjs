// AWS's own SQS client on the command line: it shares no code with what is tested, signs, and checks digests.
//
//   client.mjs ENDPOINT create NAME [ATTRIBUTES as JSON]   prints {"url": ...}
//   client.mjs ENDPOINT send NAME ENTRIES as JSON          prints SQS's answer
//   client.mjs ENDPOINT consume NAME [OPTIONS as JSON]     receives and deletes; prints a line of JSON per message
//
// Options of consume: messages: stop after so many; idle: stop after so many seconds without one (default 2);
// loops: receive with so many at the same time (default 1; the order of a group is kept, each loop deletes what it
// has printed before it receives more); keep: do not delete. Credentials and region: AWS_ACCESS_KEY_ID and so on.
import {
  CreateQueueCommand, DeleteMessageBatchCommand, GetQueueUrlCommand, ReceiveMessageCommand,
  SendMessageBatchCommand, SQSClient,
} from "@aws-sdk/client-sqs";

// Node 20 will do until the lock file moves on.
process.env.AWS_SDK_JS_NODE_VERSION_SUPPORT_WARNING_DISABLED = "true";

const [endpoint, command, name, json] = process.argv.slice(2);
const options = JSON.parse(json ?? "{}");
const sqs = new SQSClient({ endpoint, maxAttempts: 5 });

async function create() {
  const { QueueUrl } = await sqs.send(new CreateQueueCommand({ QueueName: name, Attributes: options }));
  console.log(JSON.stringify({ url: QueueUrl }));
}

async function url() {
  return (await sqs.send(new GetQueueUrlCommand({ QueueName: name }))).QueueUrl;
}

async function send() {
  const { Successful = [], Failed = [] } =
    await sqs.send(new SendMessageBatchCommand({ QueueUrl: await url(), Entries: options }));
  console.log(JSON.stringify({ Successful, Failed }));
}

async function consume() {
  const QueueUrl = await url();
  const idle = (options.idle ?? 2) * 1000;
  let left = options.messages ?? Infinity;
  let last = Date.now();

  async function loop() {
    while (left > 0 && Date.now() - last < idle) {
      const { Messages = [] } = await sqs.send(new ReceiveMessageCommand({
        QueueUrl,
        MaxNumberOfMessages: 10,
        WaitTimeSeconds: 1,
        VisibilityTimeout: 60,
        MessageSystemAttributeNames: ["All"],
        MessageAttributeNames: ["All"],
      }));
      if (Messages.length === 0)
        continue;
      last = Date.now();
      left -= Messages.length;
      process.stdout.write(Messages.map((m) => JSON.stringify({
        id: m.MessageId,
        group: m.Attributes.MessageGroupId,
        dedup: m.Attributes.MessageDeduplicationId,
        seq: m.Attributes.SequenceNumber,
        receive_count: Number(m.Attributes.ApproximateReceiveCount),
        trace: m.Attributes.AWSTraceHeader,
        body: m.Body,
        attributes: Object.fromEntries(Object.entries(m.MessageAttributes ?? {}).map(([key, value]) =>
          [key, value.StringValue ?? Buffer.from(value.BinaryValue).toString("base64")])),
      }) + "\n").join(""));
      if (!options.keep) {
        const { Failed = [] } = await sqs.send(new DeleteMessageBatchCommand({
          QueueUrl,
          Entries: Messages.map((m, n) => ({ Id: String(n), ReceiptHandle: m.ReceiptHandle })),
        }));
        if (Failed.length > 0)
          throw new Error(`not deleted: ${JSON.stringify(Failed)}`);
      }
    }
  }
  await Promise.all(Array.from({ length: options.loops ?? 1 }, loop));
}

await { create, send, consume }[command]();
