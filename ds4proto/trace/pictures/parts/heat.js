// Heat maps by layer and token.
const heat = byId('heat'), which = byId('which'), measure = byId('measure');
const CELL = 15, NAMES = 110;
const cursor = {row: 0, column: 0};
const mapShown = () => meta.heat[which.selectedIndex];

function shade(part) { // dark blue over green to yellow, legible on both papers
  const stops = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
  const at = Math.min(Math.max(part, 0), 1) * (stops.length - 1), k = Math.min(Math.floor(at), 3);
  const mixed = stops[k].map((v, j) => Math.round(v + (stops[k + 1][j] - v) * (at - k)));
  return 'rgb(' + mixed.join(',') + ')';
}

function valueOf(cell) { return Math.abs(cell[Number(measure.value)]); }

function drawHeat() {
  const map = mapShown();
  const rows = map ? map.labels.length : 1;
  const tall = Math.max(6, Math.min(CELL, 900 / rows));
  const [context, width] = surface(heat, rows * tall + 26);
  if (!map) {
    context.fillStyle = state.ink.dim;
    context.fillText('no gates and no values crossed in this capture', 10, 14);
    return;
  }
  let top = 0;
  for (const row of map.cells) for (const cell of row) if (cell) top = Math.max(top, valueOf(cell));
  const wide = (width - NAMES - 4) / Math.max(1, map.columns);
  const every = Math.ceil(12 / tall);
  map.cells.forEach((row, r) => {
    if (r % every === 0) {
      context.fillStyle = state.ink.ink;
      context.fillText(fitted(context, map.labels[r], NAMES - 10), 4, r * tall + tall / 2);
    }
    row.forEach((cell, c) => {
      if (!cell) return;
      context.fillStyle = shade(top ? valueOf(cell) / top : 0);
      context.fillRect(NAMES + c * wide, r * tall, Math.max(wide, 1), tall);
    });
  });
  context.strokeStyle = state.ink.mark;
  context.lineWidth = 2;
  context.strokeRect(NAMES + cursor.column * wide, cursor.row * tall, Math.max(wide, 2), tall);
  context.lineWidth = 1;
  context.fillStyle = state.ink.dim;
  context.fillText(map.column + (map.join > 1 ? 's, ' + map.join + ' a column' : '') +
    '; brightest: ' + top.toPrecision(4) + ' ' + (measure.value === '2' ? 'values' : map.unit),
  NAMES, rows * tall + 14);
}

function sayCell() {
  const map = mapShown();
  if (!map) return;
  const cell = map.cells[cursor.row] && map.cells[cursor.row][cursor.column];
  const first = cursor.column * map.join, last = first + map.join - 1;
  const name = map.labels[cursor.row] + ', ' + map.column + ' ' + (first + 1) +
    (last > first ? ' to ' + (last + 1) : '');
  byId('cell').textContent = cell
    ? name + ': mean ' + cell[0] + ' ' + map.unit + ', greatest ' + cell[1] + ' ' + map.unit +
      ' (' + cell[2] + ' values)'
    : name + ': nothing crossed';
}

function moveCell(rows, columns) {
  const map = mapShown();
  if (!map) return;
  cursor.row = Math.min(Math.max(cursor.row + rows, 0), map.labels.length - 1);
  cursor.column = Math.min(Math.max(cursor.column + columns, 0), map.columns - 1);
  sayCell();
  redraw();
}

function cellAt(x, y, width) {
  const map = mapShown();
  if (!map) return;
  const tall = Math.max(6, Math.min(CELL, 900 / map.labels.length));
  cursor.row = 0;
  cursor.column = 0;
  moveCell(Math.floor(y / tall), Math.floor((x - NAMES) / ((width - NAMES - 4) / map.columns)));
}
