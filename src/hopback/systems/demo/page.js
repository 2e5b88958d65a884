const show = counters => {
  for (const [name, found] of Object.entries(counters))
    for (const [key, value] of Object.entries(found)) {
      const place = document.getElementById(name + '-' + key);
      if (place) place.textContent = value;
    }
};
const refresh = async () => {
  try { show(await (await fetch('/demo/counters')).json()); } catch { /* the demo has ended */ }
};
refresh(); setInterval(refresh, 1000);
const incident = document.getElementById('incident');
if (incident) {
  const shop = JSON.parse(incident.dataset.shop);
  const run = Math.random().toString(36).slice(2, 8);
  const orders = [1, 2, 3, 4, 5].map(number => 'incident-' + run + '-' + number);
  const pause = () => new Promise(done => setTimeout(done, 1000));
  const send = async (method, url, body) => {
    const answer = await fetch(url, {method, headers: {'Content-Type': 'application/json'},
      body: JSON.stringify(body)});
    if (!answer.ok) throw new Error(answer.status + ' ' + await answer.text());
    return answer.json();
  };
  const dead = async () => (await (await fetch('/demo/counters')).json()).ratatoskr.dead;
  const placed = async () => (await Promise.all(orders.map(
    order => fetch(shop.url + '/orders/' + order)))).filter(answer => answer.ok).length;
  let before = 0;
  const steps = [
    async () => {
      before = await dead();
      await send('PUT', shop.url + '/warehouse', {open: false});
      for (const order of orders)
        await send('POST', shop.url + '/events', {type: 'order.placed', order, sku: 'acorn', quantity: 1});
      return 'the warehouse is closed, five orders are published';
    },
    async report => {
      for (let found = 0; (found = await dead() - before) < 5; await pause())
        report(Math.max(found, 0) + ' of 5 are dead letters, the others are retried');
      return 'all five are dead letters';
    },
    async () => { window.open(shop.page, '_blank'); return 'opened in another tab'; },
    async () => {
      await send('PUT', shop.url + '/warehouse', {open: true});
      return 'open; ' + await placed() + ' of 5 orders are placed';
    },
    async report => {
      const job = {kind: 're-drive', queue: shop.queue, reason: 'the warehouse is open again',
        selection: {filter: 'error:NotYet'}};
      try { await send('POST', '/admin/dlq/jobs', job); } catch (error) {
        if (!String(error).includes('unsafe')) throw error;
        // From RabbitMQ 4.0 on, browsing counts against the delivery limit of the queue. Lift it first.
        await send('POST', '/admin/dlq/queues/' + encodeURIComponent(shop.queue) + '/lift-limit', {});
        await send('POST', '/admin/dlq/jobs', job);
      }
      for (let found = 0; (found = await placed()) < 5; await pause())
        report(found + ' of 5 orders are placed');
      return 'all five orders are placed, the incident is over';
    },
  ];
  steps.forEach((step, index) => {
    const line = document.getElementById('step' + (index + 1));
    const button = line.querySelector('button'), text = line.querySelector('span');
    button.disabled = index > 0;
    button.onclick = async () => {
      button.disabled = true;
      try {
        text.textContent = await step(words => { text.textContent = words; });
        line.className = 'done';
        const next = document.querySelector('#step' + (index + 2) + ' button');
        if (next) next.disabled = false;
      } catch (error) { text.textContent = String(error); button.disabled = false; }
    };
  });
}
