-- What a --share-gpu job is allocated, and which jobs have their nodes to themselves. Runs in slurmctld (Lua 5.1).
--
-- Use it as the site's job_submit.lua, or from the site's own:
--   local share = dofile("/usr/lib/slurm-share/job_submit.lua")     -- first: it defines the two functions Slurm looks for
--   function slurm_job_submit(job, partitions, uid)                  -- then yours, which replaces them
--     local code = share.submit(job, partitions, uid)
--     if code ~= slurm.SUCCESS then return code end
--     ...
--     return slurm.SUCCESS
--   end
--   function slurm_job_modify(job, old, partitions, uid) return slurm.SUCCESS end

local M = {}

-- The vocabulary of slurm_share/names.py; tests/plugins/test_job_submit.py compares.
M.CONFIG = "/etc/slurm-share/config.toml"
M.KEY = "exclusive_user_partitions"
M.VARIABLE = "SHARE_GPU"
M.DIRECT = "SHARE_GPU_SRUN"
M.FORM = "N[,mem=SIZE][,sm=PERCENT|even|free][,mps=on|off], or off"
M.SHARE_MAX = 60
M.MEM_MAX_MIB = 16 * 1024 * 1024
M.OPTION_MAX_BYTES = 64

-- job.shared
local NODE, USER = 0, 2

-- The share --------------------------------------------------------------------------------------------------------------
-- The plugin has checked a value that came through sbatch, salloc or srun. One that came through slurmrestd or a client of
-- somebody's own has been checked by nobody.

local MIB_PER = { [""] = 1, m = 1, g = 1024, t = 1024 * 1024 }

local function whole(word, most)
  if string.match(word, "^[1-9]%d*$") and #word < 10 and tonumber(word) <= most then return tonumber(word) end
end

local checks = {
  mem = function(value)
    local digits, unit, tail = string.match(string.lower(value), "^(%d+)([mgt]?)(i?b?)$")
    if not digits or tail == "i" or (unit == "" and tail ~= "") then return false end
    return whole(digits, M.MEM_MAX_MIB / MIB_PER[unit]) ~= nil
  end,
  sm = function(value)
    return value == "even" or value == "free" or whole(string.match(value, "^(%d+)%%?$") or "", 100) ~= nil
  end,
  mps = function(value) return value == "on" or value == "off" end,
}

-- N of a value, 0 for `off`, nil for anything that is not in the valid form.
function M.tasks_per_gpu(text)
  if text == "off" then return 0 end
  if #text > M.OPTION_MAX_BYTES then return nil end
  local count, rest = string.match(text, "^(%d+)(.*)$")
  local n = count and whole(count, M.SHARE_MAX)
  local given = {}
  while n and rest ~= "" do
    local key, value, after = string.match(rest, "^,(%l+)=([%w%%]+)(.*)$")
    if not key or not checks[key] or given[key] or not checks[key](value) then return nil end
    given[key], rest = value, after
  end
  if given.mps == "off" and (given.mem or (given.sm and given.sm ~= "free")) then return nil end
  return n
end

-- N of a job's `spank_job_env` and the whole value: or nil for a job without a share, or nil, nil and a sentence.
function M.share(spank_job_env)
  local found, text
  for _, setting in pairs(spank_job_env or {}) do
    local value = string.match(setting, "^" .. M.VARIABLE .. "=(.*)$")
    if value then
      local n = M.tasks_per_gpu(value)
      if not n or (found and found ~= n) then
        local shown = string.gsub(string.sub(value, 1, 40), "[^%w%p ]", "?")
        return nil, nil, "slurm-share: --share-gpu=" .. shown .. " is not in the valid form " .. M.FORM
          .. ", for example --share-gpu=4,mem=8G"
      end
      found, text = n, value
    end
  end
  if found ~= 0 then return found, text end
end

-- The GPUs a job asks for on each node. nil: none, by name. 0: in a form that does not say how many on a node.
function M.gpus_asked(job)
  local asked
  for _, field in ipairs({ "tres_per_node", "tres_per_job", "tres_per_task", "tres_per_socket" }) do
    for item in string.gmatch(job[field] or "", "[^,]+") do
      local name, count = string.match(item, "^gres[/:](%a+)(.*)$")
      if name == "gpu" then
        if field ~= "tres_per_node" then return 0 end
        asked = (asked or 0) + (tonumber(string.match(count, "[:=](%d+)$")) or 1)
      end
    end
  end
  return asked
end

local function tasks_are_open(job)
  return job.num_tasks == slurm.NO_VAL and job.ntasks_per_node == slurm.NO_VAL16
end

-- What cannot be -------------------------------------------------------------------------------------------------------

local function is_direct(job)
  for _, setting in pairs(job.spank_job_env or {}) do
    if setting == M.DIRECT .. "=1" then return true end
  end
  return false
end

-- The line that works: what srun was told, and numbers for what it was not.
local function srun_line(job, n, text)
  local nodes = job.min_nodes and job.min_nodes ~= slurm.NO_VAL and math.max(job.min_nodes, 1) or 1
  local tasks = job.num_tasks ~= slurm.NO_VAL and job.num_tasks or nil
  local total = tonumber(string.match(job.tres_per_job or "", "gres[/:]gpu[^,]-[:=](%d+)%f[%D]"))
  local k = M.gpus_asked(job)
  local gpus
  if total then
    gpus, tasks = "--gpus=" .. total, tasks or n * total
  else
    if not k or k == 0 then k = tasks and math.ceil(tasks / (n * nodes)) or 1 end
    gpus, tasks = "--gres=gpu:" .. k, tasks or n * k * nodes
  end
  if nodes == 1 then return string.format("srun --share-gpu=%s %s -n%d PROGRAM", text, gpus, tasks) end
  -- Slurm deals -n8 over two nodes as 7 and 1 where one of them has the CPUs for it
  return string.format("srun --share-gpu=%s -N%d %s --ntasks-per-node=%d PROGRAM", text, nodes, gpus, math.ceil(tasks / nodes))
end

-- A sentence for a share that cannot be as asked; nil for all others.
local function problem_of(job, n, text)
  if job.het_job_offset ~= nil and job.het_job_offset ~= slurm.NO_VAL then
    return "slurm-share: a heterogeneous job cannot have --share-gpu: its parts would need one share each;"
      .. " submit the part that shares as a job of its own, for example sbatch --share-gpu=4 job.sh"
  end
  for item in string.gmatch(job.tres_per_node or "", "[^,]+") do
    local name = string.match(item, "^gres[/:](%a+)")
    if name == "shard" or name == "mps" then
      return "slurm-share: --gres=" .. name .. " does not go with --share-gpu, which parts the GPUs itself; ask for GPUs,"
        .. " for example sbatch --share-gpu=" .. text .. " --gres=gpu:1 job.sh"
    end
  end
  if job.ntasks_per_tres ~= nil and job.ntasks_per_tres ~= slurm.NO_VAL16 then
    return "slurm-share: --ntasks-per-gpu does not go with --share-gpu, which says itself how many tasks a GPU gets;"
      .. " leave it away, for example sbatch --share-gpu=" .. text .. " --gres=gpu:1 job.sh"
  end
  if is_direct(job) and (not M.gpus_asked(job) or tasks_are_open(job)) then
    return "slurm-share: srun --share-gpu without an allocation needs a number of GPUs and one of tasks, for example "
      .. srun_line(job, n, text)
  end
end

-- The CPUs of a node of the job's partitions, the least of them; nil where Slurm does not say. Nodes of one partition are
-- taken as alike: of unlike ones this is the average.
function M.cpus_of_a_node(job, partitions)
  local least
  for _, name in ipairs(M.partitions_of(job, partitions)) do
    local partition = (partitions or {})[name]
    local cpus, nodes = partition and partition.total_cpus, partition and partition.total_nodes
    if cpus and nodes and nodes > 0 then least = math.min(least or math.huge, math.floor(cpus / nodes)) end
  end
  return least
end

-- Whole nodes, with all GPUs, CPUs and memory; or the GPUs that were asked for, on nodes of one user. What the user said
-- about tasks, CPUs and memory stays.
local function allot(job, n, cpus_of_a_node)
  local k = M.gpus_asked(job)
  if not k then
    job.shared = NODE
    -- as --mem=0; pn_min_memory cannot be asked: unset, it is NO_VAL64, and --mem-per-cpu is a flag bit in it
    if job.min_mem_per_node == nil and job.min_mem_per_cpu == nil then job.min_mem_per_node = 0 end
    return
  end
  if job.shared ~= NODE then job.shared = USER end
  if k > 0 and tasks_are_open(job) then
    if cpus_of_a_node and n * k > cpus_of_a_node then
      -- More slots than CPUs are allowed, the tasks then take turns on these too; to ask for a CPU each would wait for ever.
      job.pn_min_cpus = cpus_of_a_node
      return
    end
    job.ntasks_per_node = n * k -- so that the job gets a CPU for each of them on its node
    if job.min_cpus < n * k then job.min_cpus = n * k end
  elseif job.tres_per_job and tasks_are_open(job) and not job.cpus_per_tres and job.cpus_per_task == slurm.NO_VAL16 then
    job.cpus_per_tres = string.format("gres/gpu:%d", n) -- --gpus=2: only Slurm knows on which node; as --cpus-per-gpu=N
  end
end

-- Partitions whose nodes belong to one user at a time -------------------------------------------------------------------

-- The next position in `text` that is neither a blank (nor, if `lines`, a newline) nor in a comment.
local function skip(text, at, lines)
  local blank = lines and "^%s" or "^[ \t\r]"
  while true do
    if string.find(text, blank, at) then
      at = at + 1
    elseif string.sub(text, at, at) == "#" then
      at = string.find(text, "\n", at, true) or #text + 1
    else
      return at
    end
  end
end

-- The string that begins at `at` and the position behind it; nil for one that does not end.
local function read_string(text, at)
  local quote = string.match(text, '^"""', at) or string.match(text, "^'''", at) or string.sub(text, at, at)
  local first = at + #quote
  at = first
  while at <= #text do
    local c = string.sub(text, at, at)
    if c == "\\" and string.sub(quote, 1, 1) == '"' then
      at = at + 2
    elseif string.sub(text, at, at + #quote - 1) == quote then
      return (string.gsub(string.sub(text, first, at - 1), quote == '"' and '\\(["\\])' or "^$", "%1")), at + #quote
    elseif c == "\n" and #quote == 1 then
      return nil
    else
      at = at + 1
    end
  end
end

-- The position behind any value: the end of its line, or of its last line.
local function skip_value(text, at)
  local depth = 0
  while at <= #text do
    local c = string.sub(text, at, at)
    if c == "\n" and depth == 0 then return at end
    if c == '"' or c == "'" then
      local _, behind = read_string(text, at)
      if not behind then return nil end
      at = behind
    elseif c == "#" then
      at = skip(text, at, false)
    else
      if c == "[" or c == "{" then depth = depth + 1 elseif c == "]" or c == "}" then depth = depth - 1 end
      at = at + 1
    end
  end
  return depth == 0 and at or nil
end

local function read_list(text, at)
  local list = {}
  if string.sub(text, at, at) ~= "[" then return nil end
  at = skip(text, at + 1, true)
  while string.sub(text, at, at) ~= "]" do
    if not string.find(text, "^[\"']", at) then return nil end
    local name, behind = read_string(text, at)
    if not name then return nil end
    list[#list + 1] = name
    at = skip(text, behind, true)
    if string.sub(text, at, at) == "," then
      at = skip(text, at + 1, true)
    elseif string.sub(text, at, at) ~= "]" then
      return nil
    end
  end
  return list
end

-- The value of the top-level key `exclusive_user_partitions` in the text of config.toml: a list of names, empty where the key
-- is not there; nil where the text was not understood.
function M.exclusive_user_partitions(text)
  local at = skip(text, 1, true)
  while at <= #text and string.sub(text, at, at) ~= "[" do -- a table: from there on no key is a top-level one
    local key, value = string.match(text, "^([%w_%-%.]+)[ \t]*=[ \t]*()", at)
    if not key then key, value = string.match(text, "^[\"']([^\"'\n]*)[\"'][ \t]*=[ \t]*()", at) end
    if not key then return nil end
    if key == M.KEY then return read_list(text, value) end
    at = skip_value(text, value)
    if not at then return nil end
    at = skip(text, at, true)
  end
  return {}
end

local known = { text = "", list = {}, at = -1 }

-- From the file, looked at once in a second at most. A file that is not there names no partition; one that is not understood
-- changes nothing, and slurmctld's log says so.
local function listed_partitions()
  local now = os.time()
  if now == known.at then return known.list end
  known.at = now
  local file = io.open(M.CONFIG, "r")
  local text = file and file:read("*a") or ""
  if file then file:close() end
  if text == known.text then return known.list end
  known.text = text
  local list = M.exclusive_user_partitions(text)
  if list then
    known.list = list
  else
    slurm.log_error("slurm-share: %s: %s is not a list of partition names; keeping the last one", M.CONFIG, M.KEY)
  end
  return known.list
end

-- The names in job.partition ("a,b"), or the default partition of this user where the job names none.
function M.partitions_of(job, partitions)
  local names = {}
  for name in string.gmatch(job.partition or "", "[^,]+") do names[#names + 1] = name end
  if #names == 0 then
    for name, partition in pairs(partitions or {}) do
      if partition.flag_default ~= 0 then names[#names + 1] = name end
    end
  end
  return names
end

local function is_listed(job, partitions)
  local list = listed_partitions()
  if #list == 0 then return false end
  for _, name in ipairs(M.partitions_of(job, partitions)) do
    for _, listed in ipairs(list) do
      if name == listed then return true end
    end
  end
  return false
end

-- What Slurm calls ---------------------------------------------------------------------------------------------------------

function M.submit(job, partitions, _uid)
  local n, text, problem = M.share(job.spank_job_env)
  if n then problem = problem_of(job, n, text) end
  if problem then
    slurm.log_user("%s", problem)
    return slurm.ERROR
  end
  if n then allot(job, n, M.cpus_of_a_node(job, partitions)) end
  if job.shared ~= NODE and is_listed(job, partitions) then job.shared = USER end
  return slurm.SUCCESS
end

-- `scontrol update` changes neither the share nor, for a job moved to a listed partition, how exclusive it is: the hooks on
-- the node look at who is there.
function M.modify(_job, _old, _partitions, _uid) return slurm.SUCCESS end

slurm_job_submit = M.submit
slurm_job_modify = M.modify
return M
