// Runs fauxqs, an SQS emulator that others wrote, on loopback. Prints {"http": PORT} when it is ready; ends when its
// standard input ends. Its own command would listen on all addresses, and refuse characters outside the BMP.
import { buildApp } from "fauxqs";

const types = await import(new URL("node_modules/fauxqs/dist/sqs/sqsTypes.js", import.meta.url));
const refused = /[^\t\n\r\x20-\uD7FF\uE000-\uFFFD\u{10000}-\u{10FFFF}]/u;
types.INVALID_MESSAGE_BODY_CHAR.test = (text) => refused.test(text);

const app = buildApp({ logger: false, defaultRegion: process.argv[2] ?? "eu-central-1" });
await app.listen({ port: 0, host: "127.0.0.1" });
console.log(JSON.stringify({ http: app.server.address().port }));

process.stdin.resume();
process.stdin.on("end", () => process.exit(0));
