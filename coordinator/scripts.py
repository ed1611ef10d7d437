"""The Lua scripts that change or read a session in Redis, each atomic on the session's three keys.

KEYS are the meta hash, the tokens and the sources. Time is Redis' own (effects are replicated since Redis 5, so a
script may read the clock and write). Every script answers a list: a status, then what the status needs. Sending the
same call again gives the same answer, so that a lost reply can be repeated.
"""

_PRELUDE = """
local meta, tokens, sources = KEYS[1], KEYS[2], KEYS[3]

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function whole(number)
  return string.format('%.0f', number)
end

local function get(field)
  return redis.call('HGET', meta, field) or ''
end

local function live()
  local state = get('state')
  return state ~= '' and state ~= 'DELETED'
end

-- A lease of 0 ms gives the claim up.
local function claim(counter, owner, lease_ms, ttl_ms)
  local lease_until = lease_ms > 0 and now_ms() + lease_ms or 0
  redis.call('HSET', meta, 'fence_counter', whole(counter), 'fence_owner', owner, 'lease_until', whole(lease_until))
  for _, key in ipairs(KEYS) do
    redis.call('PEXPIRE', key, ttl_ms)
  end
end

local function snapshot()
  local leased = (tonumber(get('lease_until')) or 0) > now_ms() and 1 or 0
  return {'OK', redis.call('HGETALL', meta), redis.call('GET', tokens) or '', redis.call('GET', sources) or '', leased}
end
"""

# ARGV: principal. Answers OK, hash, tokens, sources, leased | NOT_FOUND.
READ = (
    _PRELUDE
    + """
if not live() or get('principal') ~= ARGV[1] then
  return {'NOT_FOUND'}
end
return snapshot()
"""
)

# ARGV: counter, owner, lease ms, TTL ms, principal, tokens, sources, then fields and values of the hash.
# Answers OK, counter (raised above that of a deleted session) | BUSY | NOT_FOUND: it is there and another principal's.
CREATE = (
    _PRELUDE
    + """
local counter, owner = tonumber(ARGV[1]), ARGV[2]
if live() and get('fence_owner') == owner then
  return {'OK', get('fence_counter')}
end
if live() and get('principal') ~= ARGV[5] then
  return {'NOT_FOUND'}
end
-- Tokens without a hash are what is left of a session that its coordinator may yet heal.
if live() or redis.call('EXISTS', tokens) == 1 then
  return {'BUSY'}
end
counter = math.max(counter, (tonumber(get('fence_counter')) or 0) + 1)
redis.call('SET', tokens, ARGV[6])
redis.call('SET', sources, ARGV[7])
redis.call('HSET', meta, 'length', whole(#ARGV[7]), unpack(ARGV, 8))
claim(counter, owner, tonumber(ARGV[3]), tonumber(ARGV[4]))
return {'OK', whole(counter)}
"""
)

# ARGV: principal, owner, lease ms, TTL ms, counter to rise above, 1 to supersede a live lease.
# Answers OK, hash, tokens, sources, leased | NOT_FOUND | DAMAGED | BUSY, ms until the lease ends.
TAKE = (
    _PRELUDE
    + """
if not live() or get('principal') ~= ARGV[1] then
  return {'NOT_FOUND'}
end
-- Only the coordinator that holds the whole session can heal it: leave it its claim.
local length = tonumber(get('length'))
if redis.call('STRLEN', tokens) ~= 4 * length or redis.call('STRLEN', sources) ~= length then
  return {'DAMAGED'}
end
local counter, lease_until = tonumber(get('fence_counter')), tonumber(get('lease_until'))
local repeated = get('fence_owner') == ARGV[2] and lease_until > 0
if not repeated then
  local remaining = lease_until - now_ms()
  if remaining > 0 and ARGV[6] ~= '1' then
    return {'BUSY', remaining}
  end
  counter = math.max(counter, tonumber(ARGV[5])) + 1
end
claim(counter, ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]))
return snapshot()
"""
)

# ARGV: counter, owner, lease ms, TTL ms, base_length, tokens and sources from there on, then fields and values.
# Answers OK | STALE, counter, owner | BEHIND (send everything from 0) | CONFLICT.
WRITE = (
    _PRELUDE
    + """
local counter, owner, lease_ms, base_length = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[5])
local new_tokens, new_sources = ARGV[6], ARGV[7]
local held_counter, held_owner = tonumber(get('fence_counter')) or 0, get('fence_owner')
local mine = held_counter == counter and held_owner == owner
local stale = {'STALE', whole(held_counter), held_owner}
if get('state') == 'DELETED' or (held_counter >= counter and not mine) then
  return stale
end

local held_tokens, held_sources = redis.call('STRLEN', tokens), redis.call('STRLEN', sources)
if base_length > 0 and not (mine and held_tokens >= 4 * base_length and held_sources >= base_length) then
  return {'BEHIND'}
end
local held = redis.call('GETRANGE', tokens, 4 * base_length, -1)
local shared = math.min(#held, #new_tokens)
if held:sub(1, shared) ~= new_tokens:sub(1, shared) or (#held > shared and not mine) then
  return {'CONFLICT'}
end

-- The claim has moved on, or was given up: a late repeat changes nothing, but may still give the claim up.
if mine and (#held > shared or get('lease_until') == '0') then
  if #held < #new_tokens then
    return stale
  end
  if lease_ms == 0 then
    redis.call('HSET', meta, 'lease_until', '0')
  end
  return {'OK'}
end

if #new_tokens > #held then
  redis.call('APPEND', tokens, new_tokens:sub(#held + 1))
end
if base_length + #new_sources > held_sources then
  redis.call('APPEND', sources, new_sources:sub(held_sources - base_length + 1))
end
redis.call('HSET', meta, 'length', whole(base_length + #new_sources), unpack(ARGV, 8))
claim(counter, owner, lease_ms, tonumber(ARGV[4]))
return {'OK'}
"""
)

# ARGV: principal, owner, TTL ms. Leaves the fence, so that a coordinator that has not noticed cannot bring it back.
# Answers OK, counter | NOT_FOUND.
DELETE = (
    _PRELUDE
    + """
local state, owner = get('state'), ARGV[2]
if state == 'DELETED' and get('fence_owner') == owner then
  return {'OK', get('fence_counter')}
end
if not live() or get('principal') ~= ARGV[1] then
  return {'NOT_FOUND'}
end
local counter = tonumber(get('fence_counter')) + 1
redis.call('DEL', meta, tokens, sources)
redis.call('HSET', meta, 'state', 'DELETED')
claim(counter, owner, 0, tonumber(ARGV[3]))
return {'OK', whole(counter)}
"""
)
