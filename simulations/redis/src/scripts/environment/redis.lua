-- `redis`, as scripts see it, around `few` and `many`, which leave the interpreter and execute a command. What leaves and what comes
-- back travels as plain values: a table that is made outside costs several times as much.

local few, many, choose, places, keys, globals = ...
local error, tostring, type, unpack = globals.error, globals.tostring, globals.type, globals.unpack
local find, format, sub = globals.string.find, globals.string.format, globals.string.sub
local seconds, micros = 0, 0

-- What a command answered: strings (false for nil), an integer, or an error.
local function reply(kind, ...)
  if kind == 0 then return { ... } end
  if kind == 1 then return (...) end
  return { err = (...) }
end

-- Most calls come within the same second as the one before.
local second, shown = -1, ''
local function time_of(name, key)
  if name ~= 'TIME' or key ~= nil then return end
  if seconds ~= second then second, shown = seconds, format('%d', seconds) end
  return { shown, tostring(micros) }
end

-- What is wrong with a command that leaves out the key, or that nobody knows.
local function problem_of(name)
  if places[name] then return 'ERR a command without the key that KEYS names' end
  return 'ERR simulations know no command ' .. tostring(name)
end

-- Redis takes the first of several words as the error's code, and puts ERR before a single one.
local function coded(text)
  if sub(text, 1, 1) == '-' then text = sub(text, 2) end
  return find(text, ' ', 1, true) and text or 'ERR ' .. text
end

-- The key that commands are executed on, and whether another one can be: it is one of KEYS.
local current
local function turns_to(key)
  for place = 1, #keys do
    if keys[place] == key then
      choose(place)
      current = key
      return true
    end
  end
end

-- What executes a command with these words.
local function raw(_, _, _, _, _, _, seventh) return seventh == nil and few or many end

local redis = {
  call = function(name, key, ...)
    local place = places[name]
    if place and (key == current or turns_to(key)) then return reply(raw(...)(true, place, ...)) end
    return time_of(name, key) or error(problem_of(name), 0)
  end,
  pcall = function(name, key, ...)
    local place = places[name]
    if place and (key == current or turns_to(key)) then return reply(raw(...)(false, place, ...)) end
    return time_of(name, key) or { err = problem_of(name) }
  end,
  error_reply = function(text) return { err = coded(text) } end,
  status_reply = function(text) return { ok = text } end,
}

-- Runs a script at this time of the server's clock, and returns what is in its answer, or its answer if that is text.
local function run(script, s, us)
  seconds, micros, current = s, us, keys[1]
  local answer = script()
  if type(answer) == 'string' then return answer end
  if type(answer) ~= 'table' then error('ERR a script answered ' .. tostring(answer), 0) end
  if answer.err then error(answer.err, 0) end
  return unpack(answer)
end

return redis, run
