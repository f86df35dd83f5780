-- The part of Redis' library `struct` that scripts use: `pack` and `unpack` of unsigned integers, the lowest byte first
-- (`<`, then `I` and how many bytes), and of bytes (`c` and how many). Another format is an error, as is a value that an
-- integer of Redis' would change on its way.
--
-- In Lua, because each way out of the interpreter costs more than the bytes do. A function is written for each format when
-- a script first names it; formats are few, and constants of the scripts.

local globals = ...
local error, ipairs, loadstring, setmetatable = globals.error, globals.ipairs, globals.loadstring, globals.setmetatable
local byte, char, sub, concat = globals.string.byte, globals.string.char, globals.string.sub, globals.table.concat

local function fail(what) error('ERR ' .. what, 0) end

-- The items of a format: the letter and the bytes of each.
local function items(format)
  if sub(format, 1, 1) ~= '<' or #format == 1 then fail('simulations know formats that begin with < only') end
  local all = {}
  for place = 2, #format, 2 do
    local letter, width = sub(format, place, place), byte(format, place + 1) or 0
    local most = letter == 'I' and 8 or letter == 'c' and 9 or 0
    width = width - 48 -- of the digit 0
    if width < 1 or width > most then fail('invalid format, or one that simulations do not know') end
    all[#all + 1] = { letter = letter, width = width }
  end
  return all
end

-- The function that this text is, which is passed the values of `names`.
local function written(text, ...) return loadstring(concat(text))(...) end

-- names(prefix, from, to): 'b1,b2,b3'.
local function names(prefix, from, to)
  local all = {}
  for i = from, to do all[#all + 1] = prefix .. i end
  return concat(all, ',')
end

-- The number whose bytes are in these names, the lowest first: exact below 2^53, and rounded once above.
local function sum(from, to)
  if to - from >= 4 then return '(' .. sum(from + 4, to) .. ')*4294967296+(' .. sum(from, from + 3) .. ')' end
  local text = 'b' .. to
  for i = to - 1, from, -1 do text = '(' .. text .. ')*256+b' .. i end
  return text
end

local unpackers = setmetatable({}, { __index = function(known, format)
  local values, last = {}, 0
  for _, item in ipairs(items(format)) do
    local first = last + 1
    last = last + item.width
    values[#values + 1] = item.letter == 'I' and sum(first, last) or
      'sub(data,place+' .. first - 1 .. ',place+' .. last - 1 .. ')'
  end
  values[#values + 1] = 'place+' .. last
  local made = written({
    'local byte,sub,fail=... return function(data,place) ',
    'if #data<place+', last - 1, " then fail(\"bad argument #2 to 'unpack' (data string too short)\") end ",
    'local ', names('b', 1, last), '=byte(data,place,place+', last - 1, ') return ', concat(values, ','), ' end' },
    byte, sub, fail)
  known[format] = made
  return made
end })

local packers = setmetatable({}, { __index = function(known, format)
  local all, text, parts, bytes = items(format), {}, {}, {}
  local function say(...) for _, word in ipairs({ ... }) do text[#text + 1] = word end end
  local function flush()
    if #bytes > 0 then parts[#parts + 1] = 'char(' .. concat(bytes, ',') .. ')' end
    bytes = {}
  end
  say('local char,sub,fail=... return function(', names('v', 1, #all), ') local b ')
  for i, item in ipairs(all) do
    local v = 'v' .. i
    if item.letter == 'I' then
      say('if not(', v, '>=0 and ', v, '<256^', item.width, ' and ', v, '%1==0) then fail(', v, '.." does not fit into ',
        item.width, ' bytes") end ')
      for place = 1, item.width - 1 do
        local byte = v .. '_' .. place
        say('local ', byte, '=', v, '%256 ', v, '=(', v, '-', byte, ')/256 ')
        bytes[#bytes + 1] = byte
      end
      bytes[#bytes + 1] = v
    else
      say('if #', v, '<', item.width, ' then fail("bad argument to \'pack\'") end ')
      flush()
      parts[#parts + 1] = 'sub(' .. v .. ',1,' .. item.width .. ')'
    end
  end
  flush()
  say('return ', concat(parts, '..'), ' end')
  known[format] = written(text, char, sub, fail)
  return known[format]
end })

return {
  -- The values, and the place behind the last.
  unpack = function(format, data, place) return unpackers[format](data, place or 1) end,
  pack = function(format, ...) return packers[format](...) end,
}
