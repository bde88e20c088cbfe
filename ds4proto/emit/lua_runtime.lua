-- What follows walks the tables above: framing, recognition, trees. No offset, length
-- or name of a field stands here.

local proto = {
  ds4d = Proto("ds4d", "ds4 pipeline (DS4D)"),
  ds4t = Proto("ds4t", "ds4 tensor parallelism (DS4T)"),
  ds4b = Proto("ds4b", "ds4 gates of many rows (DS4B)"),
}

local MAX_ITEMS_DEFAULT = 4096
local LATEST_VERSION = 64
local SEARCH_MOST = 64 * 1024 * 1024

proto.ds4d.prefs.dialect = Pref.string("Dialect", "auto",
  "auto, or the name of a DS4D dialect, such as hello-v3")
proto.ds4d.prefs.items = Pref.uint("Items of a list", MAX_ITEMS_DEFAULT,
  "Tokens shown of a frame; the rest is counted")
proto.ds4t.prefs.dialect = Pref.string("Dialect", "auto",
  "auto, or the name of a DS4T dialect, such as v12-ane")

-- bits by arithmetic: Lua 5.1 to 5.4 have no operator in common
function DS4.band(a, b)
  local result, bit = 0, 1
  while a > 0 and b > 0 do
    local x, y = a % 2, b % 2
    if x == 1 and y == 1 then result = result + bit end
    a, b, bit = (a - x) / 2, (b - y) / 2, bit * 2
  end
  return result
end

------------------------------------------------------------------ fields, experts

local field = {}
do
  local made = { ds4d = {}, ds4t = {}, ds4b = {} }
  local maker = {
    uint32 = ProtoField.uint32, uint64 = ProtoField.uint64,
    int32 = ProtoField.int32, int64 = ProtoField.int64,
  }
  for _, f in ipairs(DS4.fields) do
    local key, title, kind, number_base, values, doc = f[1], f[2], f[3], f[4], f[5], f[6]
    local new
    if kind == "bytes" then
      new = ProtoField.bytes(key, title, base.NONE, doc)
    elseif kind == "string" then
      new = ProtoField.string(key, title, base.UNICODE, doc)
    elseif kind == "float" then
      new = ProtoField.float(key, title, doc)
    elseif kind == "none" then
      new = ProtoField.none(key, title, doc)
    else
      new = maker[kind](key, title, base[number_base], values, nil, doc)
    end
    field[key] = new
    table.insert(made[string.sub(key, 1, 4)], new)
  end
  for name, p in pairs(proto) do
    local left = ProtoField.bytes(name .. ".undecoded", "undecoded",
      base.NONE, "bytes that belong to no frame")
    field[name .. ".undecoded"] = left
    table.insert(made[name], left)
    local dialect = ProtoField.string(name .. ".dialect", "dialect",
      base.UNICODE, "dialect under which the frame was read")
    field[name .. ".dialect"] = dialect
    table.insert(made[name], dialect)
    local frame = ProtoField.string(name .. ".frame", "frame",
      base.UNICODE, "name of the frame")
    field[name .. ".frame"] = frame
    table.insert(made[name], frame)
    p.fields = made[name]
  end
end

local broken = {}
for name, p in pairs(proto) do
  broken[name] = ProtoExpert.new(name .. ".broken", "broken rule",
    expert.group.PROTOCOL, expert.severity.WARN)
  p.experts = { broken[name] }
end

------------------------------------------------------------------ state

-- Cleared when a file is opened. `streams` by the two ends of a connection; `runs` by the leader's
-- address and port and the worker's address; `decided` keeps what the first pass
-- found out, so that later passes show the same.
local streams, runs, decided, ds4d_dialect

local function start()
  streams, runs, decided, ds4d_dialect = {}, {}, {}, nil
end
for _, p in pairs(proto) do p.init = start end
start()

local function stream_state(pinfo)
  local a = tostring(pinfo.src) .. ":" .. pinfo.src_port
  local b = tostring(pinfo.dst) .. ":" .. pinfo.dst_port
  local key = a < b and a .. "-" .. b or b .. "-" .. a
  local found = streams[key]
  if not found then
    found = { sides = {} }
    streams[key] = found
  end
  return found
end

local function side_of(stream, pinfo)
  local key = tostring(pinfo.src) .. ":" .. pinfo.src_port
  local found = stream.sides[key]
  if not found then
    found = { key = key, layers = {} }
    stream.sides[key] = found
  end
  return found
end

------------------------------------------------------------------ values and trees

local function number_at(f, range)
  if f.kind == "b" then return nil end
  if f.kind == "f" then return f.little and range:le_float() or range:float() end
  if f.size == 8 then
    local wide
    if f.kind == "i" then wide = f.little and range:le_int64() or range:int64()
    else wide = f.little and range:le_uint64() or range:uint64() end
    return wide:tonumber()
  end
  if f.kind == "i" then return f.little and range:le_int() or range:int() end
  return f.little and range:le_uint() or range:uint()
end

local function complain(tree, name, clause, text)
  if clause == "" or clause == nil then return end
  tree:add_proto_expert_info(broken[name], clause .. ": " .. text)
end

local function outside(f, value)
  if f.const and value ~= f.const then return "expected " .. f.const end
  if f.one_of and not f.one_of[value] then return "expected " .. f.expected end
  if f.low and value < f.low then return "expected " .. f.expected end
  if f.high and value > f.high then return "expected " .. f.expected end
  return nil
end

local function flag_words(f, value)
  local words, rest = {}, value
  for _, pair in ipairs(f.flags) do
    if DS4.band(value, pair[1]) ~= 0 then
      words[#words + 1] = pair[2]
      rest = rest - pair[1]
    end
  end
  if rest ~= 0 then words[#words + 1] = string.format("unknown 0x%x", rest) end
  return table.concat(words, "|")
end

local Sized = { __len = function(self) return self.size end }

local show_layout

local function show_field(tree, name, f, range, values, pending)
  local item
  if f.kind == "b" then
    item = tree:add(field[f.key], range)
    return
  end
  if f.little then item = tree:add_le(field[f.key], range)
  else item = tree:add(field[f.key], range) end
  local value = number_at(f, range)
  values[f.path] = value
  if f.flags then item:append_text(" (" .. flag_words(f, value) .. ")") end
  local wrong = outside(f, value)
  if wrong and pending then
    pending[#pending + 1] = { item, f.clause, f.path .. " " .. value .. ", " .. wrong }
  end
end

local function show_ints(tree, name, t, tvb, at, size, values)
  local item, most = t.item, proto.ds4d.prefs.items
  local count = math.floor(size / item.size)
  local list = setmetatable({ size = count }, Sized)
  for i = 0, count - 1 do
    local part = tvb:range(at + i * item.size, item.size)
    if i < most then
      if item.little then tree:add_le(field[t.key], part)
      else tree:add(field[t.key], part) end
    end
    local value = number_at(item, part)
    if outside(t, value) and not list.wrong then
      list.wrong = true
      complain(tree, name, t.clause,
        t.path .. "[" .. i .. "] " .. value .. ", expected " .. t.expected)
    end
  end
  if count * item.size ~= size then
    complain(tree, name, t.clause, t.path .. " ends inside an item")
  end
  values[t.path] = list
end

-- Shows one tail at `at`; returns where it ends, or nil where it does not fit.
local function show_tail(tree, name, t, tvb, at, stop, values)
  local size = stop - at
  if t.length then
    local wanted = t.length(values)
    if wanted > size then
      complain(tree, name, t.clause,
        t.path .. " wants " .. wanted .. " bytes, " .. size .. " are there")
      return nil
    end
    size = wanted
  end
  if t.kind == "records" or t.kind == "one" then
    local count = t.kind == "one" and 1 or t.count(values)
    local list = {}
    local place = at
    for i = 1, count do
      local room = at + size - place
      if room < t.record.size then
        complain(tree, name, t.record.short ~= "" and t.record.short or t.clause,
          t.path .. " " .. i .. " of " .. count .. " is not whole")
        return nil
      end
      local inner = tree:add(field[t.key], tvb:range(place, room))
      local found = {}
      local next_place = show_layout(inner, name, t.record, tvb, place, at + size, found)
      if not next_place then return nil end
      inner:set_len(next_place - place)
      if t.kind == "records" then inner:append_text(" " .. i) end
      list[i] = found
      place = next_place
    end
    values[t.path] = t.kind == "one" and list[1] or list
    return place
  end
  if t.kind == "blob" then
    local inner_stop = at + size
    if size == 0 and t.empty then
      for _, part in ipairs(t.parts) do
        if part.count and part.count(values) > 0 then
          complain(tree, name, t.empty, t.path .. " is empty")
        end
      end
      return at
    end
    for _, part in ipairs(t.parts) do
      at = show_tail(tree, name, part, tvb, at, inner_stop, values)
      if not at then return nil end
    end
    if at < inner_stop then
      complain(tree, name, t.trailing, (inner_stop - at) .. " bytes too many")
    end
    return inner_stop
  end
  if size == 0 then
    values[t.path] = t.kind == "text" and "" or setmetatable({ size = 0 }, Sized)
    return at
  end
  local range = tvb:range(at, size)
  if t.kind == "ints" then
    show_ints(tree, name, t, tvb, at, size, values)
  elseif t.kind == "text" then
    tree:add(field[t.key], range)
    values[t.path] = range:raw()
  else
    tree:add(field[t.key], range)
    values[t.path] = setmetatable({ size = size }, Sized)
  end
  return at + size
end

-- Shows a layout between two offsets; returns where it ends, or nil.
show_layout = function(tree, name, layout, tvb, at, stop, values)
  local first, pending = at, {}
  for _, f in ipairs(layout.fields) do
    if stop - at < f.size then
      complain(tree, name, layout.short,
        (stop - first) .. " bytes, the fixed part has " .. layout.size)
      return nil
    end
    show_field(tree, name, f, tvb:range(at, f.size), values, pending)
    at = at + f.size
  end
  local whole = true
  for _, t in ipairs(layout.tails) do
    at = show_tail(tree, name, t, tvb, at, stop, values)
    if not at then whole = false break end
  end
  if whole then
    for _, wrong in ipairs(pending) do complain(wrong[1], name, wrong[2], wrong[3]) end
    for _, rule in ipairs(layout.rules) do
      if not rule.test(values) then
        complain(tree, name, rule.clause,
          rule.path .. (rule.expected and ", expected " .. rule.expected or ""))
      end
    end
  end
  return at
end

local SUMMARY = { "request", "session_id", "pos0", "n_tokens", "layer_start", "layer_end",
  "layer", "gate", "rows", "seq", "token", "count", "status", "result_kind" }

-- Shows one frame; `head` is its header layout or nil. Returns the values.
local function show_frame(tree, pinfo, frame, head, dialect, tvb, at, size)
  local name = string.lower(frame.protocol)
  local top = tree:add(proto[name], tvb:range(at, size))
  top:append_text(": " .. frame.name)
  local values = {}
  top:add(field[name .. ".frame"], tvb:range(at, 0), frame.full):set_generated()
  top:add(field[name .. ".dialect"], tvb:range(at, 0), dialect):set_generated()
  local from, stop = at, at + size
  if head then
    for _, f in ipairs(head.fields) do
      show_field(top, name, f, tvb:range(from, f.size), {})
      from = from + f.size
    end
  end
  local ended = show_layout(top, name, frame.body, tvb, from, stop, values)
  if ended and ended < stop and not frame.loose then
    complain(top, name, frame.body.trailing, (stop - ended) .. " bytes too many")
  end
  local words = {}
  for _, key in ipairs(SUMMARY) do
    local value = values[key]
    if type(value) == "number" then
      words[#words + 1] = key .. "=" .. string.format("%.0f", value)
    end
    if #words == 3 then break end
  end
  local text = frame.name .. (#words > 0 and " " .. table.concat(words, " ") or "")
  top:append_text(" " .. table.concat(words, " "))
  pinfo.cols.protocol = frame.protocol
  if DS4.first_of ~= pinfo.number then
    pinfo.cols.info:set(text)
    DS4.first_of = pinfo.number
  else
    pinfo.cols.info:append("; " .. text)
  end
  return values
end

local function show_rest(tree, pinfo, name, tvb, at)
  tree:add(field[name .. ".undecoded"], tvb:range(at))
  pinfo.cols.protocol = string.upper(name)
end

-- Asks for more bytes: exactly `missing` of them, or one more segment.
local function wait(pinfo, at, missing)
  pinfo.desegment_offset = at
  pinfo.desegment_len = missing or DESEGMENT_ONE_MORE_SEGMENT
end

-- A frame that cannot become whole here: the capture was cut, or no reassembly is on.
local function may_wait(pinfo)
  return pinfo.can_desegment > 0
end

------------------------------------------------------------------ DS4D

local DS4D_HEAD = DS4.headers.DS4D
local MAGIC_D = DS4D_HEAD.fields[1].const

local function head_words(head, tvb, at)
  local words, from = {}, at
  for i, f in ipairs(head.fields) do
    words[i] = number_at(f, tvb:range(from, f.size))
    from = from + f.size
  end
  return words[1], words[2], words[3]
end

local function value_in(layout, path, tvb, at)
  local from = at
  for _, f in ipairs(layout.fields) do
    if f.path == path then return number_at(f, tvb:range(from, f.size)) end
    from = from + f.size
  end
  return nil
end

local function chosen_ds4d()
  local wanted = proto.ds4d.prefs.dialect
  if DS4.frames[wanted] then return wanted, true end
  return ds4d_dialect or DS4.default.DS4D, false
end

-- Notes what the bytes of a frame say about the dialect: the place of the name in a
-- HELLO, and a type that one decoded fork alone has.
local function learn_ds4d(code, tvb, at, size)
  local now, fixed = chosen_ds4d()
  if fixed then return end
  local hello = DS4.frames[DS4.default.DS4D]["1"] or DS4.frames[DS4.default.DS4D][1]
  if hello and code == 1 then
    for _, d in ipairs(DS4.dialects) do
      local frame = d.protocol == "DS4D" and DS4.frames[d.name][1]
      if frame and frame.body.size ~= hello.body.size and size >= frame.body.size then
        local length = value_in(frame.body, "model_name_len", tvb, at)
        local plain = value_in(hello.body, "model_name_len", tvb, at)
        if length == size - frame.body.size and plain ~= size - hello.body.size then
          ds4d_dialect = d.name
        end
      end
    end
  elseif not DS4.frames[now][code] then
    for _, d in ipairs(DS4.dialects) do
      local frame = d.protocol == "DS4D" and DS4.frames[d.name][code]
      if frame and #frame.body.fields > 0 and size >= frame.body.size
          and (#frame.body.tails > 0 or size == frame.body.size)
          and d.hello == hello.body.size then
        ds4d_dialect = d.name
        return
      end
    end
  end
end

local function dissect_ds4d(tvb, pinfo, tree)
  local at, total = 0, tvb:len()
  while at < total do
    if total - at < DS4D_HEAD.size then
      if may_wait(pinfo) then wait(pinfo, at, DS4D_HEAD.size - (total - at)) return total end
      show_rest(tree, pinfo, "ds4d", tvb, at)
      return total
    end
    local magic, code, size = head_words(DS4D_HEAD, tvb, at)
    if magic ~= MAGIC_D then
      show_rest(tree, pinfo, "ds4d", tvb, at)
      return total
    end
    local whole = DS4D_HEAD.size + size
    if total - at < whole then
      if may_wait(pinfo) then wait(pinfo, at, whole - (total - at)) return total end
      show_rest(tree, pinfo, "ds4d", tvb, at)
      return total
    end
    if not pinfo.visited then learn_ds4d(code, tvb, at + DS4D_HEAD.size, size) end
    local key = pinfo.number .. ":" .. at .. ":" .. total
    local dialect = decided[key] or chosen_ds4d()
    decided[key] = dialect
    local frame = DS4.frames[dialect][code] or {
      name = "type " .. code, full = "DS4D." .. code, protocol = "DS4D", loose = true,
      body = { size = 0, fields = {}, tails = {}, rules = {}, short = "", trailing = "" },
    }
    show_frame(tree, pinfo, frame, DS4D_HEAD, dialect, tvb, at, whole)
    at = at + whole
  end
  return total
end

function proto.ds4d.dissector(tvb, pinfo, tree)
  return dissect_ds4d(tvb, pinfo, tree)
end

------------------------------------------------------------------ DS4T and DS4B

local DS4T_HEAD = DS4.headers.DS4T
local MAGIC_T = DS4T_HEAD.fields[1].const
local PLAIN = DS4.frames[DS4.default.DS4T]
local MAGIC_B = PLAIN["DS4B.GATE_BULK"].body.fields[1].const

local function magic_at(tvb, at)
  if tvb:len() - at < 4 then return nil end
  return tvb:range(at, 4):le_uint()
end

local function hello_of(dialect) return DS4.frames[dialect]["DS4T.HELLO"] end

-- The identity of a model is where a hello has it, and nowhere in a gate.
local function plausible(dialect, tvb, at)
  local body = hello_of(dialect).body
  local last = 0
  for _, f in ipairs(body.fields) do
    if f.path == "quant_bits" then break end
    last = last + f.size
  end
  if tvb:len() - at < last then return false end
  local layers = value_in(body, "n_layer", tvb, at)
  local width = value_in(body, "n_embd", tvb, at)
  local words = value_in(body, "n_vocab", tvb, at)
  if not (layers and width and words) then return false end
  return layers > 0 and layers <= 4096 and width > 0 and width <= 1048576
    and words > 0 and words <= 16777216
end

local function is_hello(tvb, at)
  if magic_at(tvb, at) ~= MAGIC_T or tvb:len() - at < DS4T_HEAD.size then return false end
  local version = tvb:range(at + 4, 4):le_uint()
  if version > LATEST_VERSION then return false end
  for _, d in ipairs(DS4.dialects) do
    if d.protocol == "DS4T" and hello_of(d.name) and plausible(d.name, tvb, at) then
      return true
    end
  end
  if tvb:len() - at >= 48 then return false end
  local role = tvb:range(at + 8, 4):le_uint()
  return version > 0 and (role == 1 or role == 2)
end

-- Returns the dialect of a hello and its size; nil where more bytes must come.
local function hello_dialect(tvb, at)
  local wanted = proto.ds4t.prefs.dialect
  if DS4.frames[wanted] then return wanted, hello_of(wanted).body.size end
  local version = tvb:range(at + 4, 4):le_uint()
  local have = tvb:len() - at
  local fits, longest = {}, 0
  for _, d in ipairs(DS4.dialects) do
    if d.protocol == "DS4T" and d.hello and (d.version == version) then
      fits[#fits + 1] = d
      longest = math.max(longest, d.hello)
    end
  end
  if #fits == 0 then
    for _, d in ipairs(DS4.dialects) do
      if d.protocol == "DS4T" and d.hello and not d.foreign then
        fits[#fits + 1] = d
        longest = math.max(longest, d.hello)
      end
    end
  end
  local best
  for _, d in ipairs(fits) do
    local size = d.hello
    local ends = have == size or (have > size and magic_at(tvb, at + size) == MAGIC_T)
    if ends or (#fits > 0 and size == longest and have >= longest and not best) then
      local pad = have >= size and value_in(hello_of(d.name).body, "pad", tvb, at) or 0
      local marked = d.pad and true or false
      if (pad ~= nil and pad ~= 0) == marked or not best then
        if not (best and ends and best.ends) or ((pad ~= 0) == marked and not best.right) then
          best = { d = d, size = size, ends = ends, right = ((pad or 0) ~= 0) == marked }
        end
      end
    end
  end
  if best then return best.d.name, best.size end
  return nil, longest
end

local function run_key(leader, port, worker) return leader .. ":" .. port .. "|" .. worker end

local function find_run(pinfo)
  local src, dst = tostring(pinfo.src), tostring(pinfo.dst)
  return runs[run_key(src, pinfo.src_port, dst)] or runs[run_key(dst, pinfo.dst_port, src)]
end

-- Keeps what a hello says for the connection that follows it.
local function note_hello(pinfo, dialect, tvb, at)
  local body = hello_of(dialect).body
  local role = value_in(body, "role", tvb, at)
  local src, dst = tostring(pinfo.src), tostring(pinfo.dst)
  local key
  if role == 2 then key = run_key(dst, pinfo.dst_port, src)
  else key = run_key(src, pinfo.src_port, dst) end
  local run = runs[key] or {}
  run.dialect, run.sizes = dialect, run.sizes or {}
  run.held, run.context = run.held or {}, run.context or {}
  run.width = value_in(body, "n_embd", tvb, at)
  run.layers = value_in(body, "n_layer", tvb, at)
  runs[key] = run
  return run
end

local function unknown_ds4t(code)
  return {
    name = "type " .. code, full = "DS4T." .. code, protocol = "DS4T", loose = true,
    body = { size = 0, fields = {}, tails = {}, rules = {}, short = "", trailing = "" },
  }
end

-- Type 18 and the like name two frames in some dialects; the direction decides.
local function control_frame(dialect, code)
  return DS4.frames[dialect][code]
end

-- Follows what each session holds, for the plan of its bulk gates.
local function take_command(run, frame, values)
  local held, id = run.held, values.session_id or values.prefill_session_id or 1
  local count = values.count or values.prompt_count or values.token_count
  if frame.name == "SESSION_CREATE" then
    run.context[id], held[id] = values.ctx_size, 0
  elseif frame.name == "INVALIDATE" then
    held[id] = 0
  elseif frame.name == "REWIND" then
    held[id] = math.min(held[id] or 0, math.max(0, values.position or 0))
  elseif frame.name == "EVAL" or frame.name == "GLM_MTP" then
    held[id] = (held[id] or 0) + 1
  elseif frame.name == "VERIFY" then
    run.plan = { start = 1, new = count, limit = count }
    run.block = { id = id, count = count }
  elseif frame.name == "VERIFY_COMMIT" and run.block then
    local block = run.block
    local kept = values.mode == 1 and block.count
      or math.max(0, math.min(values.token_count or 0, block.count))
    held[block.id] = (held[block.id] or 0) + kept
  elseif count and (frame.name == "SYNC" or frame.name == "SYNC_MULTIMODAL"
      or frame.name == "MIXED_BATCH") then
    local start = held[id] or 0
    if start > count then start = 0 end
    local context = run.context[id] or count
    local limit = context > DS4.plan.long and DS4.plan.long or math.max(context, 1)
    run.plan = { start = start, new = count - start, limit = limit }
    held[id] = count
  end
  for _, item in ipairs(values.items or {}) do
    held[item.session_id] = (held[item.session_id] or 0) + 1
  end
end

local function dissect_control(tvb, pinfo, tree, stream, side)
  local at, total = 0, tvb:len()
  while at < total do
    local key = pinfo.number .. ":" .. at .. ":" .. total
    local choice = decided[key]
    if not choice and not side.greeted then
      if total - at < DS4T_HEAD.size then
        if may_wait(pinfo) then wait(pinfo, at, DS4T_HEAD.size - (total - at)) return total end
        show_rest(tree, pinfo, "ds4t", tvb, at)
        return total
      end
      if magic_at(tvb, at) ~= MAGIC_T then
        show_rest(tree, pinfo, "ds4t", tvb, at)
        return total
      end
      local dialect, size = hello_dialect(tvb, at)
      if not dialect or total - at < size then
        if may_wait(pinfo) then
          wait(pinfo, at, total - at < size and dialect and size - (total - at) or nil)
          return total
        end
        show_rest(tree, pinfo, "ds4t", tvb, at)
        return total
      end
      choice = { hello = true, dialect = dialect, size = size }
      side.greeted, side.dialect = true, dialect
      side.run = note_hello(pinfo, dialect, tvb, at)
    end
    if choice and choice.hello then
      decided[key] = choice
      show_frame(tree, pinfo, hello_of(choice.dialect), nil, choice.dialect, tvb, at, choice.size)
      at = at + choice.size
    else
      if side.skip and side.skip > 0 and not choice then
        choice = { raw = math.min(side.skip, total - at) }
        side.skip = side.skip - choice.raw
        decided[key] = choice
      end
      if choice and choice.raw then
        tree:add(field["ds4t.undecoded"], tvb:range(at, choice.raw))
        at = at + choice.raw
      else
        if total - at < DS4T_HEAD.size then
          if may_wait(pinfo) then wait(pinfo, at, DS4T_HEAD.size - (total - at)) return total end
          show_rest(tree, pinfo, "ds4t", tvb, at)
          return total
        end
        local magic, code, size = head_words(DS4T_HEAD, tvb, at)
        if magic ~= MAGIC_T then
          show_rest(tree, pinfo, "ds4t", tvb, at)
          return total
        end
        local whole = DS4T_HEAD.size + size
        if total - at < whole then
          if may_wait(pinfo) then wait(pinfo, at, whole - (total - at)) return total end
          show_rest(tree, pinfo, "ds4t", tvb, at)
          return total
        end
        local dialect = choice and choice.dialect or side.dialect or DS4.default.DS4T
        decided[key] = { dialect = dialect }
        local frame = control_frame(dialect, code) or unknown_ds4t(code)
        local values = show_frame(tree, pinfo, frame, DS4T_HEAD, dialect, tvb, at, whole)
        if frame.raw and not pinfo.visited then side.skip = frame.raw(values) end
        if not pinfo.visited and side.run then
          if frame.name == "RDMA_INFO" then side.run.rdma = true end
          take_command(side.run, frame, values)
        end
        at = at + whole
      end
    end
  end
  return total
end

-- The head of a gate at `at`: its frame, layer and number, or nil.
local function gate_head(dialect, tvb, at)
  local magic = magic_at(tvb, at)
  local list = DS4.frames[dialect]
  local frame
  if dialect == "v15" then
    if magic ~= MAGIC_T or tvb:len() - at < 8 then return nil end
    local kind = tvb:range(at + 4, 4):le_uint()
    frame = DS4.gates[tostring(kind)] and list[DS4.gates[tostring(kind)]]
  elseif magic == MAGIC_T then
    frame = list["DS4T.GATE_ROW"]
  elseif magic == MAGIC_B then
    frame = list["DS4B.GATE_BULK"]
    local batch = list["DS4B.GATE_BATCH"]
    if tvb:len() - at >= batch.body.size then
      local rows = value_in(batch.body, "rows", tvb, at)
      local limit
      for _, f in ipairs(batch.body.fields) do if f.path == "rows" then limit = f end end
      if not outside(limit, rows) or not frame then frame = batch end
    end
  end
  if not frame or tvb:len() - at < frame.body.size then return nil end
  return frame, value_in(frame.body, "layer", tvb, at), value_in(frame.body, "seq", tvb, at)
end

-- Does a gate of this connection begin here, right behind the one before?
local function follows(run, tvb, at, before, next_only)
  local frame, layer, seq = gate_head(run.dialect, tvb, at)
  if not frame then return false end
  if layer > run.layers and layer ~= 65534 then return false end
  if frame.protocol == "DS4B" then
    return seq > before.seq and seq <= before.seq + (next_only and 1 or 64)
  end
  for _, f in ipairs(frame.body.fields) do
    if f.path == "gate" and outside(f, value_in(frame.body, "gate", tvb, at)) then
      return false
    end
  end
  return seq >= 1 and seq < 1099511627776
end

-- Where a bulk gate stands: its number among those of its layer, and whether a layer
-- of the same chunk came before.
local function bulk_place(side, layer)
  local mark = side.bulk
  if not mark or layer < mark.layer then return { number = 1 } end
  if mark.layer == layer then
    return { number = mark.number + 1, layer = mark.before }
  end
  return { number = 1, layer = mark.layer }
end

-- Rows that the command of the leader makes due in the first layer of a chunk; 0 where
-- nothing is known. Limits that the wire does not show are taken at their defaults.
local function planned_rows(run, side, place)
  local plan = run.plan
  if not plan then return 0 end
  if side.plan ~= plan then side.plan, side.done = plan, 0 end
  local rows = math.min(plan.new - side.done, plan.limit)
  local swap = plan.start + side.done == 0 and rows >= DS4.plan.split_min
  if swap and place.number == 1 then return math.ceil(rows / 2) end
  return math.max(0, rows)
end

-- Bytes of the payload of a gate, or nil and how many are missing.
local function gate_payload(run, side, frame, layer, seq, tvb, at)
  local head = frame.body.size
  local have = tvb:len() - at - head
  local stated = value_in(frame.body, "bytes", tvb, at)
  if stated then return stated end
  if frame.name == "GATE_ROW" then return 4 * run.width end
  local function ends(size)
    return have - size < head or follows(run, tvb, at + head + size, { seq = seq })
  end
  if run.rdma and not run.bulk_on_tcp then
    if ends(0) then return 0 end
    run.bulk_on_tcp = true
  end
  if frame.name == "GATE_BATCH" then
    return 4 * run.width * value_in(frame.body, "rows", tvb, at)
  end
  -- A bulk gate states no length. The peer's gate of that number has the same, and so
  -- has the same place of the layer before; else the plan of the command says what is
  -- due; and where the bytes behind it are no header, the next header ends the gate.
  local row = 4 * run.width
  local place = bulk_place(side, layer)
  for _, due in ipairs({
    run.sizes[seq] or -1,
    place.layer and side.layers[place.number] or -1,
    planned_rows(run, side, place) * row,
  }) do
    if due > 0 and have < due and not side.doubt then return nil, due - have end
    if due > 0 and have >= due and ends(due) then
      for size = row, due - row, row do
        if follows(run, tvb, at + head + size, { seq = seq }, true) then return size end
      end
      return due
    end
  end
  side.doubt = true
  local from = side.searched and side.searched.seq == seq and side.searched.to or row
  local size = from
  while size + head <= have do
    if follows(run, tvb, at + head + size, { seq = seq }) then
      side.doubt = nil
      return size
    end
    size = size + row
  end
  side.searched = { seq = seq, to = math.max(row, size) }
  if have > SEARCH_MOST then return have end
  return nil, nil
end

-- What the first pass finds out about the bytes at `at`: a frame and its size; nil and
-- the missing bytes where more must come; nothing where this is no gate.
local function next_on_data(run, side, tvb, at)
  local total = tvb:len()
  local list = DS4.frames[run.dialect]
  local first = tvb:range(at, 1):uint()
  local magic = magic_at(tvb, at)
  local barrier = list["DS4T.BARRIER"]
  if run.rdma and barrier and magic ~= MAGIC_T and magic ~= MAGIC_B
      and ((first ~= MAGIC_T % 256 and first ~= MAGIC_B % 256) or total - at == 1) then
    return { full = "DS4T.BARRIER", size = barrier.body.size }
  end
  local frame, layer, seq = gate_head(run.dialect, tvb, at)
  if not frame then
    local head = list["DS4T.GATE_ROW"].body.size
    if total - at < head then return nil, true, head - (total - at) end
    return nil, false
  end
  local head = frame.body.size
  local payload, missing = gate_payload(run, side, frame, layer, seq, tvb, at)
  if not payload then return nil, true, missing end
  if total - at < head + payload then
    return nil, true, head + payload - (total - at)
  end
  if frame.name == "GATE_BULK" then
    local place = bulk_place(side, layer)
    if not place.layer then
      if place.number == 1 then side.layers = {} end
      local rows = payload / (4 * run.width)
      if side.plan and planned_rows(run, side, { number = 2 }) == rows then
        side.done = side.done + rows
      end
    end
    side.layers[place.number] = payload
    side.bulk = { layer = layer, number = place.number, before = place.layer }
    run.sizes[seq] = payload
  end
  return { full = frame.full, size = head + payload, seq = seq, layer = layer }
end

-- Where one more segment was asked for, Wireshark hands out the gates that were shown
-- already a second time; the first pass passes over them.
local function dissect_gates(tvb, pinfo, tree, side, run)
  local at, total, shown = 0, tvb:len(), 0
  local again = side.again
  side.again = nil
  while at < total do
    local key = pinfo.number .. ":" .. at .. ":" .. total
    local choice = decided[key]
    if not choice and not pinfo.visited then
      if again and again.list[shown + 1] and at == again.list[shown + 1].at
          and total > again.total then
        choice = again.list[shown + 1].choice
        choice.repeated = true
      else
        again = nil
        local more, missing
        choice, more, missing = next_on_data(run, side, tvb, at)
        if not choice then choice = { more = more and may_wait(pinfo), missing = missing } end
      end
      decided[key] = choice
    end
    if choice and choice.more then
      if not pinfo.visited then
        side.again = side.listed and { total = total, list = side.listed } or nil
        side.listed = nil
      end
      wait(pinfo, at, choice.missing)
      return total
    end
    if not choice or not choice.full then
      show_rest(tree, pinfo, "ds4t", tvb, at)
      return total
    end
    if not pinfo.visited then
      if at == 0 then side.listed = {} end
      if side.listed then
        side.listed[#side.listed + 1] = { at = at, choice = { full = choice.full, size = choice.size } }
      end
    end
    shown = shown + 1
    if pinfo.visited or not choice.repeated then
      local frame = DS4.frames[run.dialect][choice.full]
      show_frame(tree, pinfo, frame, nil, run.dialect, tvb, at, choice.size)
    end
    at = at + choice.size
  end
  side.listed = nil
  return total
end

local function dissect_ds4t(tvb, pinfo, tree)
  local stream = stream_state(pinfo)
  local side = side_of(stream, pinfo)
  if not stream.kind then stream.kind = is_hello(tvb, 0) and "control" or "data" end
  if stream.kind == "control" then return dissect_control(tvb, pinfo, tree, stream, side) end
  local run = stream.run or find_run(pinfo)
  if not run then
    show_rest(tree, pinfo, "ds4t", tvb, 0)
    return tvb:len()
  end
  stream.run = run
  return dissect_gates(tvb, pinfo, tree, side, run)
end

function proto.ds4t.dissector(tvb, pinfo, tree)
  return dissect_ds4t(tvb, pinfo, tree)
end

function proto.ds4b.dissector(tvb, pinfo, tree)
  return dissect_ds4t(tvb, pinfo, tree)
end

------------------------------------------------------------------ any port

local function looks_ds4d(tvb)
  if tvb:len() < 4 then return false end
  local f = DS4D_HEAD.fields[1]
  if number_at(f, tvb:range(0, f.size)) ~= MAGIC_D then return false end
  if tvb:len() < DS4D_HEAD.size then return true end
  local _, code = head_words(DS4D_HEAD, tvb, 0)
  return code < 256
end

proto.ds4d:register_heuristic("tcp", function(tvb, pinfo, tree)
  if not looks_ds4d(tvb) then return false end
  pinfo.conversation = proto.ds4d
  dissect_ds4d(tvb, pinfo, tree)
  return true
end)

proto.ds4t:register_heuristic("tcp", function(tvb, pinfo, tree)
  local magic = magic_at(tvb, 0)
  local known = find_run(pinfo)
  if magic == MAGIC_T then
    if not known and not is_hello(tvb, 0) then return false end
  elseif magic == MAGIC_B then
    if not known then return false end
  elseif not (known and known.rdma and tvb:len() == 1) then
    return false
  end
  pinfo.conversation = proto.ds4t
  dissect_ds4t(tvb, pinfo, tree)
  return true
end)

local by_port = DissectorTable.get("tcp.port")
by_port:add_for_decode_as(proto.ds4d)
by_port:add_for_decode_as(proto.ds4t)
