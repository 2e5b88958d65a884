// amqplib against a broker: publish, confirm, return, a retry through a TTL queue, x-death.
//
// usage: node amqplib_client.js URL; prints one JSON object
const amqp = require("amqplib");

const queue = (deadTo, ttl) => ({
  durable: true,
  deadLetterExchange: "",
  deadLetterRoutingKey: deadTo,
  ...(ttl ? { messageTtl: ttl } : {}),
});

async function main(url) {
  const connection = await amqp.connect(url);
  const channel = await connection.createConfirmChannel();
  await channel.assertQueue("work", queue("retry"));
  await channel.assertQueue("retry", queue("work", 200));
  let returned = 0;
  channel.on("return", (message) => { returned = message.fields.replyCode; });
  channel.publish("", "nowhere", Buffer.from("lost"), { mandatory: true });
  await channel.waitForConfirms();
  channel.sendToQueue("work", Buffer.from("an order"), { persistent: true });
  await channel.waitForConfirms();
  const back = await new Promise((resolve) => {
    let first = true;
    channel.consume("work", (message) => {
      if (first) channel.nack(message, false, false);
      else resolve(message);
      first = false;
    });
  });
  channel.ack(back);
  const deaths = back.properties.headers["x-death"].map((death) => [death.queue, death.reason]);
  await channel.close();
  await connection.close();
  console.log(JSON.stringify({ confirmed: true, returned, body: back.content.toString(), deaths }));
}

main(process.argv[2]).catch((error) => { console.error(error); process.exit(1); });
