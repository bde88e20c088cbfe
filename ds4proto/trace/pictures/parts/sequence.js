// The sequence diagram, an arrow a frame, and the details of the chosen one.
const ROW = 20, HEAD = 30, CLOCK = 96;
const scroller = byId('scroller'), sequence = byId('sequence'), detail = byId('detail');
let order = null; // indices shown, or null for all

const shownCount = () => order ? order.length : frames.count;
const shownAt = (place) => order ? order[place] : place;
const placeOf = (index) => order ? lowerBound(order, index) : index;

function layOut() {
  if (state.hidden.size) {
    const found = [];
    for (let i = 0; i < frames.count; i++) if (!state.hidden.has(frames.type[i])) found.push(i);
    order = Uint32Array.from(found);
  } else order = null;
  byId('spacer').style.height = Math.max(0, shownCount() * ROW + HEAD - 510) + 'px';
}

function drawSequence() {
  const [context, width, height] = surface(sequence);
  const lanes = meta.nodes.length;
  const at = (lane) => CLOCK + (lane + 0.5) * (width - CLOCK) / Math.max(1, lanes);
  const top = Math.floor(scroller.scrollTop / ROW);
  const bottom = Math.min(shownCount(), top + Math.ceil((height - HEAD) / ROW));
  context.strokeStyle = state.ink.line;
  for (let lane = 0; lane < lanes; lane++) {
    context.beginPath();
    context.moveTo(at(lane), HEAD);
    context.lineTo(at(lane), height);
    context.stroke();
  }
  for (let place = top; place < bottom; place++) {
    const i = shownAt(place), y = HEAD + (place - top + 0.5) * ROW;
    if (i === state.chosen) {
      context.fillStyle = state.ink.select;
      context.fillRect(0, y - ROW / 2, width, ROW);
    }
    context.fillStyle = state.ink.dim;
    context.textAlign = 'right';
    context.fillText(frames.time[i].toFixed(6), CLOCK - 14, y);
    context.textAlign = 'center';
    const a = at(frames.source[i]), b = at(frames.target[i]);
    const broken = frames.flags[i] & PROBLEM, color = colorOf(frames.type[i]);
    context.strokeStyle = context.fillStyle = broken ? state.ink.bad : color;
    context.setLineDash(frames.flags[i] & UNDECODED ? [4, 3] : []);
    context.beginPath();
    context.moveTo(a, y);
    context.lineTo(b, y);
    context.stroke();
    context.setLineDash([]);
    const side = b >= a ? -6 : 6;
    context.beginPath();
    context.moveTo(b, y);
    context.lineTo(b + side, y - 4);
    context.lineTo(b + side, y + 4);
    context.fill();
    const label = (broken ? '! ' : '') + shortType(frames.type[i]) + '  ' + sizeText(frames.length[i]);
    const middle = (a + b) / 2, wide = context.measureText(label).width + 8;
    context.fillStyle = i === state.chosen ? state.ink.select : state.ink.paper;
    context.fillRect(middle - wide / 2, y - 8, wide, 16);
    context.fillStyle = broken ? state.ink.bad : state.ink.ink;
    context.fillText(label, middle, y);
  }
  context.fillStyle = state.ink.panel;
  context.fillRect(0, 0, width, HEAD);
  context.fillStyle = state.ink.ink;
  for (let lane = 0; lane < lanes; lane++) {
    context.fillText(fitted(context, nodeName(lane), (width - CLOCK) / lanes - 6), at(lane), HEAD / 2);
  }
  context.textAlign = 'left';
}

function rowAtPoint(y) {
  const place = Math.floor(scroller.scrollTop / ROW) + Math.floor((y - HEAD) / ROW);
  return y > HEAD && place >= 0 && place < shownCount() ? shownAt(place) : -1;
}

function bringIntoView(index) {
  const place = placeOf(index), first = Math.floor(scroller.scrollTop / ROW);
  const room = Math.floor((516 - HEAD) / ROW);
  if (place < first || place >= first + room) scroller.scrollTop = Math.max(0, place - 8) * ROW;
  const time = frames.time[index], span = state.end - state.begin;
  if (time < state.begin || time > state.end) showSpan(time - span / 2, time + span / 2);
}

function choose(index) {
  if (index < 0 || index >= frames.count) return;
  state.chosen = index;
  bringIntoView(index);
  redraw();
  showDetail(index);
}

// the next frame in a direction that is not hidden and, where asked, breaks a rule
function step(by, broken) {
  let place = state.chosen < 0 ? (by > 0 ? -1 : shownCount()) : placeOf(state.chosen);
  for (place += by; place >= 0 && place < shownCount(); place += by) {
    const i = shownAt(place);
    if (!broken || frames.flags[i] & (PROBLEM | UNDECODED)) { choose(i); return; }
  }
}

function addRow(table, name, value) {
  const row = table.insertRow();
  row.insertCell().textContent = name;
  row.insertCell().textContent =
    typeof value === 'object' && value !== null ? JSON.stringify(value) : String(value);
}

function hexLines(hex) {
  const lines = [];
  for (let at = 0; at < hex.length / 2; at += 16) {
    const part = hex.slice(at * 2, at * 2 + 32).match(/../g) || [];
    const text = part.map((b) => {
      const code = parseInt(b, 16);
      return code > 31 && code < 127 ? String.fromCharCode(code) : '.';
    }).join('');
    lines.push(at.toString(16).padStart(8, '0') + '  ' + part.join(' ').padEnd(48) + ' ' + text);
  }
  return lines.join('\n');
}

async function showDetail(index) {
  const [line, fields, problems, hex] = await detailOf(index);
  if (index !== state.chosen) return;
  const parts = [];
  const add = (tag, text, kind) => {
    const made = document.createElement(tag);
    if (text) made.textContent = text;
    if (kind) made.className = kind;
    parts.push(made);
    return made;
  };
  add('h3', typeName(frames.type[index]));
  if (line) add('p', line);
  for (const problem of problems) add('p', '! ' + problem, 'broken');
  const table = add('table');
  addRow(table, 'from', nodeName(frames.source[index]));
  addRow(table, 'to', nodeName(frames.target[index]));
  addRow(table, 'time', frames.first[index].toFixed(6) + ' to ' + frames.time[index].toFixed(6) + ' s');
  addRow(table, 'length', frames.length[index] + ' bytes');
  addRow(table, 'packets', frames.first_packet[index] + ' to ' + frames.packet[index]);
  addRow(table, 'connection', frames.stream[index]);
  for (const [name, value] of Object.entries(fields)) addRow(table, name, value);
  const held = hex.length / 2;
  add('h3', held ? 'bytes 0 to ' + held + ' of ' + frames.length[index] : 'bytes');
  if (held) add('pre', hexLines(hex)).id = 'bytes';
  else add('p', meta.heads ? 'Not held for this frame.' : 'This page was made without bytes.', 'quiet');
  detail.replaceChildren(...parts);
}

let hover = 0;
async function showTip(index, x, y) {
  const tip = byId('tip'), mine = ++hover;
  if (index < 0) { tip.hidden = true; return; }
  const head = document.createElement('b'), who = document.createElement('span');
  head.textContent = typeName(frames.type[index]) + '  ' + sizeText(frames.length[index]);
  who.textContent = nodeName(frames.source[index]) + ' → ' + nodeName(frames.target[index]) +
    ', ' + frames.time[index].toFixed(6) + ' s';
  const more = document.createElement('div');
  tip.replaceChildren(head, who, more);
  tip.hidden = false;
  tip.style.left = Math.min(x + 14, window.innerWidth - 470) + 'px';
  tip.style.top = (y + 14) + 'px';
  const [line, fields, problems] = await detailOf(index);
  if (mine !== hover) return;
  const shown = line || Object.entries(fields).map(([k, v]) => k + '=' + JSON.stringify(v)).join(' ');
  more.textContent = [shown, ...problems.map((text) => '! ' + text)].join(' ').slice(0, 600);
}
