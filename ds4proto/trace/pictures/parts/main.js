// Events: pointer, wheel and keys; then the first picture.
const point = (event, canvas) => {
  const box = canvas.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top, Math.floor(box.width)];
};

for (const canvas of [timeline, throughput, flight]) {
  canvas.addEventListener('wheel', (event) => {
    event.preventDefault();
    const [x, , width] = point(event, canvas);
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) move(event.deltaX / 800);
    else zoom(event.deltaY > 0 ? 1.25 : 0.8, timeAt(x, width));
  }, {passive: false});
}

let drag = null;
timeline.addEventListener('pointerdown', (event) => {
  drag = {x: event.clientX, begin: state.begin, end: state.end, moved: false};
  timeline.setPointerCapture(event.pointerId);
});
timeline.addEventListener('pointermove', (event) => {
  const [x, y, width] = point(event, timeline);
  if (drag) {
    const by = (drag.x - event.clientX) / (width - GUTTER - 8) * (drag.end - drag.begin);
    if (Math.abs(drag.x - event.clientX) > 3) drag.moved = true;
    if (drag.moved) showSpan(drag.begin + by, drag.end + by);
    return;
  }
  showTip(frameAt(x, y, width), event.clientX, event.clientY);
});
timeline.addEventListener('pointerup', (event) => {
  const [x, y, width] = point(event, timeline);
  if (drag && !drag.moved) choose(frameAt(x, y, width));
  drag = null;
});
timeline.addEventListener('pointerleave', () => showTip(-1));
timeline.addEventListener('keydown', (event) => {
  const actions = {
    ArrowLeft: () => move(-0.15), ArrowRight: () => move(0.15),
    '+': () => zoom(0.6), '=': () => zoom(0.6), '-': () => zoom(1 / 0.6), '0': fitAll,
    Home: () => showSpan(0, state.end - state.begin),
    End: () => showSpan(total - (state.end - state.begin), total),
    n: () => step(1), p: () => step(-1), e: () => step(1, true),
    Enter: () => detail.focus(),
  };
  if (actions[event.key] && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    actions[event.key]();
  }
});

scroller.addEventListener('scroll', redraw);
sequence.addEventListener('click', (event) => choose(rowAtPoint(point(event, sequence)[1])));
sequence.addEventListener('pointermove', (event) =>
  showTip(rowAtPoint(point(event, sequence)[1]), event.clientX, event.clientY));
sequence.addEventListener('pointerleave', () => showTip(-1));
scroller.addEventListener('keydown', (event) => {
  const many = (by) => choose(shownAt(Math.min(Math.max(
    (state.chosen < 0 ? 0 : placeOf(state.chosen)) + by, 0), shownCount() - 1)));
  const actions = {
    ArrowDown: () => step(1), ArrowUp: () => step(-1), e: () => step(1, true),
    PageDown: () => many(20), PageUp: () => many(-20),
    Home: () => choose(shownAt(0)), End: () => choose(shownAt(shownCount() - 1)),
    Enter: () => detail.focus(),
  };
  if (actions[event.key] && shownCount()) {
    event.preventDefault();
    actions[event.key]();
  }
});

heat.addEventListener('keydown', (event) => {
  const by = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0]}[event.key];
  if (!by) return;
  event.preventDefault();
  moveCell(...by);
});
heat.addEventListener('pointermove', (event) => cellAt(...point(event, heat)));
for (const chooser of [which, measure]) {
  chooser.addEventListener('change', () => { cursor.row = cursor.column = 0; sayCell(); redraw(); });
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  const button = byId('theme');
  button.textContent = name === 'dark' ? 'light' : 'dark';
  button.setAttribute('aria-pressed', String(name === 'dark'));
  readInk();
  redraw();
}
const preferred = window.matchMedia('(prefers-color-scheme: dark)');
preferred.addEventListener('change', () => setTheme(preferred.matches ? 'dark' : 'light'));
const swapTheme = () => setTheme(document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark');
byId('theme').addEventListener('click', swapTheme);
byId('help').addEventListener('click', () => byId('keys').showModal());
document.addEventListener('keydown', (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.tagName === 'SELECT') return;
  if (event.key === '?') byId('keys').showModal();
  if (event.key === 't') swapTheme();
  if (event.key === 'Escape') showTip(-1);
});
byId('zoom-in').addEventListener('click', () => zoom(0.6));
byId('zoom-out').addEventListener('click', () => zoom(1 / 0.6));
byId('fit').addEventListener('click', fitAll);
for (const button of document.querySelectorAll('.jump')) {
  button.addEventListener('click', () => {
    const index = frameAtPlace(Number(button.dataset.stream), button.dataset.back === '1',
      Number(button.dataset.offset));
    if (index >= 0) { choose(index); detail.focus(); } else button.disabled = true;
  });
}
window.addEventListener('resize', redraw);

function makeLegend() {
  meta.types.forEach((type, number) => {
    const label = document.createElement('label'), box = document.createElement('input');
    const swatch = document.createElement('span');
    box.type = 'checkbox';
    box.checked = true;
    swatch.className = 'swatch';
    swatch.style.background = colorOf(number);
    box.addEventListener('change', () => {
      if (box.checked) state.hidden.delete(number); else state.hidden.add(number);
      layOut();
      redraw();
    });
    label.append(box, swatch, type.name + ' ' + type.frames);
    byId('legend').append(label);
  });
  for (const map of meta.heat) {
    const option = document.createElement('option');
    option.textContent = (meta.heat.length > 1 ? 'run ' + map.run + ': ' : '') + map.name +
      (map.unit ? ', ' + map.unit : '');
    which.append(option);
  }
}

async function start() {
  if (!('DecompressionStream' in window)) {
    byId('trouble').textContent = 'This browser is too old to draw the pictures: it lacks ' +
      'DecompressionStream (Chrome 80, Firefox 113, Safari 16.4 or later have it).';
    byId('trouble').hidden = false;
    return;
  }
  setTheme(preferred.matches ? 'dark' : 'light');
  await loadColumns();
  makeLegend();
  layOut();
  fitAll();
  sayCell();
  state.draws.push(drawTimeline, drawThroughput, drawFlight, drawSequence, drawHeat);
  for (const draw of state.draws) draw();
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
}
start().catch((error) => {
  byId('trouble').textContent = 'The pictures could not be drawn: ' + error;
  byId('trouble').hidden = false;
  console.error(error);
});
