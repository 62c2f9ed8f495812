"""The steps of the Redis store that must be one: Lua, run by the server.

All keys begin with ARGV[1], which holds the shard's hash tag, so a cluster keeps them on one node.

    nonce:N, round:ID   seen requests and rounds, with a lifetime
    slot:I              a group of the pool as msgpack Entry, with a lifetime; meta I -> "NODE CONTENT"
    age                 slot numbers by the time they were written, which is how live ones are found; head: slots ever used
    own:NODE            a source's slots, oldest first; text:CONTENT -> slot, finds copies
    gone:new gone:old   contents of groups that gave way, to find their copies: at most a pool's capacity each
    min:M ming:M mind:M counters of minute M: common, groups by node, draws by node; groups, drawn: the window's
"""

from __future__ import annotations

from sapo_swarm.coordinator.records import AHEAD_S

_CREDIT = """
local function credit(p, minute, from, last)
  for i = from, last, 3 do
    local drawer, source, times = ARGV[i], ARGV[i + 1], ARGV[i + 2]
    redis.call('HINCRBY', p..'uptake', source, times)
    redis.call('HINCRBY', p..'receipts:'..source, drawer, times)
    redis.call('EXPIRE', p..'receipts:'..source, 3600)
    redis.call('HINCRBY', p..'mind:'..minute, source, times)
    redis.call('HINCRBY', p..'drawn', source, times)
  end
  if last > from then redis.call('EXPIRE', p..'mind:'..minute, 7200) end
end
"""
"""ARGV[from] to ARGV[last]: triples of (who drew, whose group, how often)."""
CREDIT = (
    _CREDIT
    + """
credit(ARGV[1], ARGV[2], 3, #ARGV)
return 0
"""
)

_PLACED = """
local function ahead_of(p, latest) return redis.call('ZCOUNT', p..'age', '('..latest, '+inf') end
local function placed(p, ahead, place)
  local slot = redis.call('ZREVRANGE', p..'age', ahead + place, ahead + place)[1]
  return slot and redis.call('GET', p..'slot:'..slot)
end
"""
"""Live groups by their position, 0 the newest. Slots dated ahead come before it, dead ones after the last."""
READ = (
    _PLACED
    + """
local found, ahead = {}, ahead_of(ARGV[1], tonumber(ARGV[2]) + AHEAD_S)
for i = 3, #ARGV do found[i - 2] = placed(ARGV[1], ahead, ARGV[i]) or false end
return found
"""
).replace("AHEAD_S", str(AHEAD_S))
"""ARGV[2]: now; then positions."""

EXCHANGE = (
    _CREDIT
    + _PLACED
    + """
local p, now, node = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local per_node, capacity, life = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])
local active, draws, credits = tonumber(ARGV[13]), tonumber(ARGV[14]), tonumber(ARGV[15])
local latest = now + AHEAD_S
credit(p, ARGV[11], #ARGV - credits + 1, #ARGV)
local banned = redis.call('HGET', p..'banned', node)
if banned then return {2, banned} end
if not redis.call('SET', p..'nonce:'..ARGV[4], '1', 'NX', 'PX', ARGV[5]) then return {1} end

local function release(slot)
  local meta = redis.call('HGET', p..'meta', slot)
  if meta then
    local owner, text = string.match(meta, '^(%S*) (.*)$')
    redis.call('LREM', p..'own:'..owner, 1, slot)
    if redis.call('GET', p..'text:'..text) == slot then redis.call('DEL', p..'text:'..text) end
    redis.call('SADD', p..'gone:new', text)
    redis.call('PEXPIRE', p..'gone:new', 2 * life)
    if redis.call('SCARD', p..'gone:new') >= capacity then
      redis.call('RENAME', p..'gone:new', p..'gone:old')
    end
  end
end

local function known(text)
  return redis.call('EXISTS', p..'text:'..text) + redis.call('SISMEMBER', p..'gone:new', text)
    + redis.call('SISMEMBER', p..'gone:old', text) > 0
end

local function allocate()
  local sources = redis.call('ZCOUNT', p..'seen', now - active, latest)
  local room = math.max(1, math.min(per_node, math.floor(capacity / math.max(1, sources))))
  if redis.call('LLEN', p..'own:'..node) >= room then
    return redis.call('LINDEX', p..'own:'..node, 0)
  end
  local dead = redis.call('ZRANGEBYSCORE', p..'age', '-inf', now - life / 1000, 'LIMIT', 0, 1)
  if not dead[1] then dead = redis.call('ZRANGEBYSCORE', p..'age', latest, '+inf', 'LIMIT', 0, 1) end
  if dead[1] then return dead[1] end
  local head = tonumber(redis.call('GET', p..'head') or '0')
  if head < capacity then
    redis.call('SET', p..'head', head + 1)
    return tostring(head)
  end
  return redis.call('ZRANGE', p..'age', 0, 0)[1]
end

local minute = ARGV[11]
local bits = redis.call('GET', p..'round:'..ARGV[6])
local at = 16 + 2 * tonumber(ARGV[12])
if not bits then
  bits = ''
  local stored = 0
  for i = 1, tonumber(ARGV[at]) do
    local text, packed = ARGV[at + 2 * i - 1], ARGV[at + 2 * i]
    if text == '' or known(text) then
      bits = bits..'0'
    else
      local slot = allocate()
      release(slot)
      redis.call('SET', p..'text:'..text, slot, 'PX', 2 * life)
      redis.call('SET', p..'slot:'..slot, packed, 'PX', life)
      redis.call('HSET', p..'meta', slot, node..' '..text)
      redis.call('ZADD', p..'age', now, slot)
      redis.call('RPUSH', p..'own:'..node, slot)
      bits = bits..'1'
      stored = stored + 1
    end
  end
  redis.call('SET', p..'round:'..ARGV[6], bits, 'PX', ARGV[7])
  for i = 1, tonumber(ARGV[12]) do
    redis.call('HINCRBYFLOAT', p..'min:'..minute, ARGV[14 + 2 * i], ARGV[15 + 2 * i])
  end
  redis.call('HINCRBY', p..'min:'..minute, 'rounds', 1)
  redis.call('EXPIRE', p..'min:'..minute, 7200)
  if stored > 0 then
    redis.call('HINCRBY', p..'ming:'..minute, node, stored)
    redis.call('EXPIRE', p..'ming:'..minute, 7200)
    redis.call('ZINCRBY', p..'groups', stored, node)
    redis.call('INCRBY', p..'total', stored)
  end
end
redis.call('ZADD', p..'seen', now, node)
local receipts = redis.call('HGETALL', p..'receipts:'..node)
redis.call('DEL', p..'receipts:'..node)
local live, ahead, drawn = redis.call('ZCOUNT', p..'age', now - life / 1000, latest), ahead_of(p, latest), {}
for i = #ARGV - credits - draws + 1, live > 0 and #ARGV - credits or 0 do
  local place = math.floor(tonumber(ARGV[i]) * live)
  drawn[#drawn + 1] = place
  drawn[#drawn + 1] = placed(p, ahead, place) or false
end
return {0, bits, tonumber(redis.call('HGET', p..'uptake', node) or '0'), receipts,
  redis.call('ZSCORE', p..'groups', node) or '0', redis.call('GET', p..'total') or '0',
  redis.call('ZCOUNT', p..'seen', now - active, latest), live, drawn}
"""
).replace("AHEAD_S", str(AHEAD_S))

DROP_NODE = """
local p, node = ARGV[1], ARGV[2]
local slots = redis.call('LRANGE', p..'own:'..node, 0, -1)
local live = 0
for _, slot in ipairs(slots) do
  local text = string.match(redis.call('HGET', p..'meta', slot) or '', '^%S* (.*)$')
  if text then redis.call('DEL', p..'text:'..text) end
  live = live + redis.call('DEL', p..'slot:'..slot)
  redis.call('HDEL', p..'meta', slot)
  redis.call('ZADD', p..'age', 0, slot)
end
redis.call('DEL', p..'own:'..node)
return live
"""

ADMIT = """
local p, now, node, invite, open = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5]
local function invited()
  local found = redis.call('HMGET', p..'invite:'..invite, 'expires', 'max_uses', 'uses', 'revoked', 'created', 'used')
  if not found[1] then return 'unknown' end
  if found[4] == '1' then return 'revoked' end
  if tonumber(found[1]) > 0 and now > tonumber(found[1]) then return 'expired' end
  local idle, last = tonumber(ARGV[9]), math.max(tonumber(found[5]), tonumber(found[6] or '0'))
  if idle > 0 and now - last > idle then return 'expired' end
  if tonumber(found[2]) > 0 and tonumber(found[3]) >= tonumber(found[2]) then return 'used_up' end
  return ''
end
local function use()
  redis.call('HINCRBY', p..'invite:'..invite, 'uses', 1)
  redis.call('HSET', p..'invite:'..invite, 'used', ARGV[2])
  redis.call('SADD', p..'by:'..invite, node)
end
if ARGV[8] == '0' and redis.call('HEXISTS', p..'members', node) == 1 then
  if ARGV[10] == '0' then return 'known' end
  if redis.call('SISMEMBER', p..'by:'..invite, node) == 1 then return 'invited' end
  if invited() ~= '' then return 'known' end
  use()
  return 'invited'
end
local full = ARGV[8] == '0' and redis.call('HLEN', p..'members') >= tonumber(ARGV[7])
if invite ~= '' or open ~= '1' then
  local refused = invited()
  if refused ~= '' then return refused end
  if full then return 'full' end
  use()
end
if full then return 'full' end
redis.call('HSET', p..'members', node, ARGV[6])
return ''
"""

DROP_MEMBERS = """
local p, dropped = ARGV[1], 0
for i = 2, #ARGV, 4 do
  local node, same = ARGV[i], redis.call('HGET', p..'members', ARGV[i]) == ARGV[i + 1]
  local seen = tonumber(redis.call('ZSCORE', p..'seen', node) or '0')
  if same and seen <= tonumber(ARGV[i + 2]) and redis.call('HEXISTS', p..'banned', node) == 0 then
    redis.call('HDEL', p..'members', node)
    redis.call('HDEL', p..'uptake', node)
    redis.call('ZREM', p..'seen', node)
    redis.call('DEL', p..'receipts:'..node)
    redis.call('SREM', p..'by:'..ARGV[i + 3], node)
    dropped = dropped + 1
  end
end
return dropped
"""
"""ARGV[2] on: (node, its record, when it was seen, its invite); drops those that are still as they were read."""

PRUNE = """
local p, edge, oldest = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local pruned = tonumber(redis.call('GET', p..'pruned') or '-1')
if pruned >= edge and pruned <= edge + 5 then return 0 end
if pruned < oldest or pruned > edge then
  redis.call('DEL', p..'groups', p..'drawn', p..'total')
  for m = edge + 62, edge + 122 do redis.call('DEL', p..'min:'..m, p..'ming:'..m, p..'mind:'..m) end
  for m = edge + 1, edge + 61 do
    local g = redis.call('HGETALL', p..'ming:'..m)
    for i = 1, #g, 2 do
      redis.call('ZINCRBY', p..'groups', g[i + 1], g[i])
      redis.call('INCRBY', p..'total', g[i + 1])
    end
    local d = redis.call('HGETALL', p..'mind:'..m)
    for i = 1, #d, 2 do redis.call('HINCRBY', p..'drawn', d[i], d[i + 1]) end
  end
else
  for m = pruned + 1, edge do
    local g = redis.call('HGETALL', p..'ming:'..m)
    for i = 1, #g, 2 do
      redis.call('ZINCRBY', p..'groups', -tonumber(g[i + 1]), g[i])
      redis.call('DECRBY', p..'total', g[i + 1])
    end
    local d = redis.call('HGETALL', p..'mind:'..m)
    for i = 1, #d, 2 do
      if redis.call('HINCRBY', p..'drawn', d[i], -tonumber(d[i + 1])) <= 0 then redis.call('HDEL', p..'drawn', d[i]) end
    end
  end
  redis.call('ZREMRANGEBYSCORE', p..'groups', '-inf', 0)
end
redis.call('SET', p..'pruned', edge)
return 1
"""
