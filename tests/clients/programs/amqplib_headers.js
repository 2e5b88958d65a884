// amqplib as a consumer that reads headers of new messages and of dead letters. It always sends a header
// table, which may be empty.
//
// usage: node amqplib_headers.js URL; prints one JSON object
const amqp = require("amqplib");

const SENT = {
  "no header": {},
  "a header": { headers: { tenant: "acme" } },
  "every property": {
    headers: { nested: { list: [1, "two", null], flag: true } }, contentType: "application/json",
    contentEncoding: "identity", correlationId: "c", replyTo: "r", messageId: "m", timestamp: 1700000000,
    type: "Order", appId: "shop", priority: 3, persistent: true,
  },
};

const deaths = (message) => {
  try {
    const found = message.properties.headers["x-death"];
    return found === undefined ? "none" : found.map((death) => [death.queue, death.reason, death.count]);
  } catch (error) {
    return error.constructor.name;
  }
};

async function main(url) {
  const connection = await amqp.connect(url);
  const channel = await connection.createConfirmChannel();
  const told = {};
  const queues = { classic: { durable: true }, quorum: { durable: true, arguments: { "x-queue-type": "quorum" } } };
  for (const [kind, options] of Object.entries(queues)) {
    const work = `headers-${kind}`, dead = `headers-${kind}-dead`;
    await channel.assertQueue(dead, { durable: true });
    await channel.assertQueue(work, { ...options, deadLetterExchange: "", deadLetterRoutingKey: dead });
    for (const [name, properties] of Object.entries(SENT)) {
      channel.sendToQueue(work, Buffer.from(name), properties);
      await channel.waitForConfirms();
    }
    const seen = told[kind] = [];
    await new Promise((resolve) => {
      channel.consume(work, (message) => {
        if (message === null) return; // the queue was deleted
        seen.push([message.content.toString(), message.properties, deaths(message)]);
        channel.nack(message, false, false);
        if (seen.length === Object.keys(SENT).length) resolve();
      });
    });
    await new Promise((resolve) => {
      let left = Object.keys(SENT).length;
      channel.consume(dead, (message) => {
        if (message === null) return;
        seen.push([message.content.toString(), deaths(message)]);
        channel.ack(message);
        left -= 1;
        if (left === 0) resolve();
      });
    });
    await channel.deleteQueue(work);
    await channel.deleteQueue(dead);
  }
  await connection.close();
  console.log(JSON.stringify(told));
}

main(process.argv[2]).catch((error) => { console.error(error); process.exit(1); });
