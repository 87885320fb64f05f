-- Decides what a --share-gpu job is allocated, and which jobs have their nodes for one user. Runs in slurmctld (Lua 5.1 or
-- later).
--
-- Use it as the site's job_submit.lua, or from the site's own:
--   local found, share = pcall(dofile, "/usr/lib/slurm-share/job_submit.lua")   -- first, for it defines Slurm's two functions
--   function slurm_job_submit(job, partitions, uid)                              -- then your own
--     local code = found and share.submit(job, partitions, uid) or slurm.SUCCESS
--     if code ~= slurm.SUCCESS then return code end
--     ...
--     return slurm.SUCCESS
--   end
--   function slurm_job_modify(job, old, partitions, uid)              -- without it users can change the verdicts of their jobs
--     return found and share.modify(job, old, partitions, uid) or slurm.SUCCESS
--   end

local M = {}

-- The same names as in slurm_share/core/names.py; tests/plugins/test_job_submit.py compares them.
M.CONFIG = "/etc/slurm-share/config.toml"
M.SETTINGS = "/etc/slurm-share/job_submit_settings.lua"
M.WRITE = "slurm-share config write-lua"
M.MODES = { off = true, observe = true, on = true }
M.FIELDS = { extra = true, comment = true }
M.VERDICT = "slurm-share"
M.FIELD_MAX_BYTES = 1024
M.QUESTION = "slurm-share-doctor" -- the reservation of the job by which `slurm-share doctor` asks for the mode
M.VARIABLE = "SHARE_GPU"
M.DIRECT = "SHARE_GPU_SRUN"
M.NO_GPUS = "SHARE_GPU_NONE"
M.OFF = "SHARE_GPU_OFF"
M.OPTION = "share-gpu"
M.FORM = "N[,mem=SIZE[:SIZE]][,sm=PERCENT|even|free|static][,sharing=auto|mps|time-slicing|exclusive], or off"
M.SHARE_MAX = 60
M.MEM_MAX_MIB = 16 * 1024 * 1024
M.MEM_MIN_MIB = 64
M.MEM_BARE_MIN_MIB = 512
M.OPTION_MAX_BYTES = 64
M.ENVIRONMENT_MAX_BYTES = 64 * 1024

-- values of job.shared
local NODE, USER = 0, 2

-- The share --------------------------------------------------------------------------------------------------------------
-- The plugin has checked a value that came through sbatch, salloc or srun, but not one from slurmrestd or another client.

local MIB_PER = { [""] = 1, m = 1, g = 1024, t = 1024 * 1024 }

local function whole(word, most)
  if string.match(word, "^[1-9]%d*$") and #word < 10 and tonumber(word) <= most then return tonumber(word) end
end

-- Returns the MiB of a size; nil: it is none.
local function size_mib(value)
  local digits, unit, tail = string.match(string.lower(value), "^(%d+)([mgt]?)(i?b?)$")
  if not digits or tail == "i" or (unit == "" and tail ~= "") then return nil end
  local size = whole(digits, M.MEM_MAX_MIB / MIB_PER[unit])
  if size and size * MIB_PER[unit] >= (unit == "" and M.MEM_BARE_MIN_MIB or M.MEM_MIN_MIB) then return size * MIB_PER[unit] end
end

local WITHOUT_CAPS_OF_MPS = { ["time-slicing"] = true, exclusive = true }
local SHARING = { auto = true, mps = true, ["time-slicing"] = true, exclusive = true }
local OLDER = { on = "mps", off = "time-slicing" } -- mps=on and mps=off

local checks = {
  mem = function(value)
    local least, most = string.match(value, "^(%w+):(%w+)$")
    if not least then return size_mib(value) ~= nil end
    local least_mib, most_mib = size_mib(least), size_mib(most)
    return least_mib ~= nil and most_mib ~= nil and least_mib < most_mib
  end,
  sm = function(value)
    return value == "even" or value == "free" or value == "static"
      or whole(string.match(value, "^(%d+)%%?$") or "", 100) ~= nil
  end,
  sharing = function(value) return SHARING[value] ~= nil end,
  mps = function(value) return OLDER[value] ~= nil end,
}

-- Returns N of a value, 0 for `off`, nil for a value that is not in the valid form.
function M.tasks_per_gpu(text)
  if text == "off" then return 0 end
  if #text > M.OPTION_MAX_BYTES then return nil end
  local count, rest = string.match(text, "^(%d+)(.*)$")
  local n = count and whole(count, M.SHARE_MAX)
  local given = {}
  while n and rest ~= "" do
    local key, value, after = string.match(rest, "^,(%l+)=([%w%%:-]+)(.*)$")
    if not key or not checks[key] or given[key] or not checks[key](value) then return nil end
    given[key], rest = value, after
  end
  local older = OLDER[given.mps]
  local sharing = given.sharing or older
  if older and older ~= sharing then return nil end
  if WITHOUT_CAPS_OF_MPS[sharing] and given.sm and given.sm ~= "free" then return nil end
  if sharing == "exclusive" and (n ~= 1 or given.mem) then return nil end
  return n
end

-- Returns a user's text for a log or a terminal: cut, and with a ? for what is not printable.
local function shown(text, most)
  return (string.gsub(string.sub(text, 1, most), "[^ -~]", "?"))
end

-- What Slurm makes of VARIABLE in Prolog, Epilog and the job's environment: a client of slurmrestd that writes it is ignored.
local NOT_THE_VARIABLE = {}
for _, prefix in ipairs({ "SPANK_", "SLURM_", "SLURM_SPANK_" }) do NOT_THE_VARIABLE[prefix .. M.VARIABLE] = true end

-- Returns N and the whole value of the share in a job's `spank_job_env`; nil for a job without a share; nil, the value and a
-- sentence for a wrong one.
function M.share(spank_job_env)
  local found, text
  for _, setting in pairs(spank_job_env or {}) do
    local name, value = string.match(setting, "^(.-)=(.*)$")
    if name and NOT_THE_VARIABLE[name] then
      return nil, shown(value, 40), "slurm-share: spank_environment has " .. name .. ", which nothing reads: the job would run"
        .. " unshared; write " .. M.VARIABLE .. "=" .. shown(value, 40) .. ", as Slurm adds the prefix itself"
    elseif name == M.VARIABLE then
      local n = M.tasks_per_gpu(value)
      if not n or (found and found ~= n) then
        local form = " is not in the valid form " .. M.FORM .. ", for example --share-gpu=4,mem=8G"
        return nil, shown(value, 40), "slurm-share: --share-gpu=" .. shown(value, 40) .. form
      end
      found, text = n, value
    end
  end
  if found ~= 0 then return found, text end
end

-- The environment of the hooks ---------------------------------------------------------------------------------------
-- slurmd puts a job's `spank_job_env` into the environment of Prolog and Epilog, however large it is. The kernel starts no
-- program with more than a quarter of its stack limit, or with a variable of 128 KiB (execve(2)): slurmd then drains the node.

local BYTES_BESIDE = #"SPANK_" + #"\0" + 8 -- of a variable: what slurmd prepends, its end, and a pointer to it

-- Returns why a job's `spank_job_env` is refused; nil: it is not.
local function problem_of_environment(spank_job_env)
  local bytes = 0
  for _, setting in pairs(spank_job_env or {}) do bytes = bytes + #setting + BYTES_BESIDE end
  if bytes <= M.ENVIRONMENT_MAX_BYTES then return nil end
  return string.format("slurm-share: the job brings %d bytes of SPANK environment for Prolog and Epilog, and at most %d are"
    .. " accepted, because a node that cannot start its Prolog is drained; the SPANK plugin that sets it is"
    .. " named in plugstack.conf, or in a file of yours if you set SLURM_CONF: unset that, or ask your administrators", bytes,
    M.ENVIRONMENT_MAX_BYTES)
end

-- The request ----------------------------------------------------------------------------------------------------------

local SCRIPT_BYTES = 256 * 1024 -- of a script, what is read

local GPU_FIELDS = { "tres_per_node", "tres_per_job", "tres_per_task", "tres_per_socket" }

-- Returns how many GPUs the text of a tres field names (nil: none), their type, and the text without them.
-- The forms: gres/gpu, gres/gpu:2, gres/gpu:h200:2, gres/gpu=1.
local function gpus_in(tres)
  local count, kind
  local others = {}
  for item in string.gmatch(tres or "", "[^,]+") do
    local name, rest = string.match(item, "^gres[/:](%a+)(.*)$")
    if name == "gpu" then
      local number, unit = string.match(rest, "[:=](%d+)([kKmMgGtTpP]?)$")
      if number then rest = string.sub(rest, 1, -#number - #unit - 2) end
      count = (count or 0) + (number and tonumber(number) * (unit == "" and 1 or 1024) or 1)
      kind = kind or string.match(rest, "^[:=](.+)$")
    else
      others[#others + 1] = item
    end
  end
  return count, kind, table.concat(others, ",")
end

-- Returns the GPUs that a job asks for on each node; nil: none; 0: in a form that does not say how many on a node.
function M.gpus_asked(job)
  for field = 2, #GPU_FIELDS do
    if gpus_in(job[GPU_FIELDS[field]]) then return 0 end
  end
  return (gpus_in(job.tres_per_node))
end

-- Returns whether the job asks for exactly one GPU, in whatever form, and the type of that GPU, if it names one.
local function asks_one_gpu(job)
  local asked, kind = false, nil
  for _, field in ipairs(GPU_FIELDS) do
    local count, its_kind = gpus_in(job[field])
    if count and (count ~= 1 or (field == "tres_per_socket" and job.sockets_per_node ~= 1)) then return false end
    asked, kind = asked or count ~= nil, kind or its_kind
  end
  return asked, kind
end

-- min_nodes is NO_VAL without -N and -n, and often with -n1 as well.
local function is_on_one_node(job)
  return job.min_nodes == nil or job.min_nodes == slurm.NO_VAL or job.min_nodes <= 1
end

local function tasks_are_open(job)
  return job.num_tasks == slurm.NO_VAL and job.ntasks_per_node == slurm.NO_VAL16
end

local function has_one_task(job)
  if job.num_tasks ~= slurm.NO_VAL then return job.num_tasks == 1 end
  return job.ntasks_per_node == 1 and is_on_one_node(job)
end

local function has_setting(job, name)
  for _, setting in pairs(job.spank_job_env or {}) do
    if setting == name .. "=1" then return true end
  end
  return false
end

local function is_direct(job) return has_setting(job, M.DIRECT) end

local OF_SBATCH, OF_SCRONTAB = { "#SBATCH", "#SLURM" }, { "#SCRON" }

-- Returns what stands behind one of these words at the beginning of a script's lines. sbatch reads no lines after the first
-- command, and needs no blank behind the word.
local function directives(script, words)
  local found = {}
  for line in string.gmatch(string.sub(script or "", 1, SCRIPT_BYTES), "[^\n]*") do
    for _, word in ipairs(words) do
      if string.sub(line, 1, #word) == word then found[#found + 1] = string.sub(line, #word + 1) end
    end
    if string.find(line, "^%s*[^#%s]") then break end
  end
  return found
end

-- Returns the arguments in the text of a directive, as sbatch divides it: quotes group, a backslash takes the next character
-- as it is, and # begins a comment.
local function arguments_of(text)
  local found, parts, quote, at = {}, {}, nil, 1
  while at <= #text do
    local plain = string.match(text, quote == "'" and "^[^'\\]+" or quote and '^[^"\\]+' or "^[^%s#'\"\\]+", at)
    local one = string.sub(text, at, at)
    if plain then
      parts[#parts + 1] = plain
      at = at + #plain - 1
    elseif one == "\\" then
      at = at + 1
      parts[#parts + 1] = string.sub(text, at, at)
    elseif quote then
      quote = nil
    elseif one == "#" then
      break
    elseif one == "'" or one == '"' then
      quote = one
    elseif #parts > 0 then
      found[#found + 1], parts = table.concat(parts), {}
    end
    at = at + 1
  end
  if #parts > 0 then found[#found + 1] = table.concat(parts) end
  return found
end

-- Returns whether the #SBATCH lines of a script say that the job has no GPUs.
local function script_says_no_gpus(script)
  local said = {}
  for _, options in ipairs(directives(script, OF_SBATCH)) do
    for _, name in ipairs({ "gres", "gpus%-per%-task", "gpus%-per%-node", "gpus" }) do
      local value = string.match(options, "%-%-" .. name .. "=(%S*)") or string.match(options, "%-%-" .. name .. "%s+(%S+)")
      said[name] = value and string.gsub(value, "[\"']", "") or said[name]
    end
  end
  for name, value in pairs(said) do
    if value == "" or string.lower(value) == (name == "gres" and "none" or "0") then return true end
  end
  return false
end

-- Returns whether the user said that the job has no GPUs. Slurm then tells nothing about GPUs, as where nothing was said.
local function says_no_gpus(job)
  local has_some = false
  for _, field in ipairs(GPU_FIELDS) do
    local count, kind = gpus_in(job[field])
    if count == 0 or kind == "none" then return true end -- --gpus=none is a type of GPUs to Slurm
    has_some = has_some or count ~= nil
  end
  return not has_some and (has_setting(job, M.NO_GPUS) or script_says_no_gpus(job.script))
end

-- Returns whether the share is a part of one GPU, which N such jobs of a user share. The Prolog recognizes them by their one
-- task, so that every share with one task and one GPU is a part. An srun without an allocation has none: its step asks for
-- the GPU as it was written.
local function is_part(job, n)
  return n > 1 and job.shared ~= NODE and not is_direct(job) and has_one_task(job) and asks_one_gpu(job)
end

-- Refusals -------------------------------------------------------------------------------------------------------------

local function nodes_asked(job)
  return job.min_nodes and job.min_nodes ~= slurm.NO_VAL and math.max(job.min_nodes, 1) or 1
end

local function is_part_of_a_heterogeneous_job(job) return job.het_job_offset ~= nil and job.het_job_offset ~= slurm.NO_VAL end

local NOT_HETEROGENEOUS = "slurm-share: a heterogeneous job cannot have --share-gpu: its parts would need one share each;"
  .. " submit the part that shares as a job of its own, for example sbatch --share-gpu=4 job.sh"

-- Returns an srun command that works: the options that were given, and numbers for those that are missing.
local function srun_line(job, n, text)
  local nodes = nodes_asked(job)
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
  -- Slurm distributes -n8 over two nodes as 7 and 1 if one of them has enough CPUs
  return string.format("srun --share-gpu=%s -N%d %s --ntasks-per-node=%d PROGRAM", text, nodes, gpus, math.ceil(tasks / nodes))
end

-- Returns why a part of a GPU is refused; nil: it is not.
local function problem_of_part(job, n, text, shards_per_gpu)
  local one_task = job.num_tasks == 1 and "-n1" or "--ntasks-per-node=1"
  local this = "--share-gpu=" .. text .. " with " .. one_task .. " and one GPU is a part of a GPU"
  local until_then = "until then leave " .. one_task .. " away to have the whole GPU, with " .. n .. " tasks on it"
  if shards_per_gpu == 0 then
    return "slurm-share: " .. this .. ", which needs gres/shard, and this cluster has none: your administrators add"
      .. " GresTypes=gpu,shard to slurm.conf, shard:COUNT to each node's Gres= and a line Name=shard Count=COUNT to gres.conf"
      .. " (COUNT = GPUs of the node x 720720; with the GPUs' type in both, where they have one), and"
      .. " shards_per_gpu = 720720 to " .. M.CONFIG .. "; " .. until_then
  end
  if math.floor(shards_per_gpu / n) * (n + 1) <= shards_per_gpu then -- n + 1 jobs would get a place on a GPU
    return "slurm-share: " .. this .. ", and here a GPU has no more than " .. shards_per_gpu .. " of them: your administrators"
      .. " raise shards_per_gpu in " .. M.CONFIG .. ", and the shards in slurm.conf and gres.conf, for example to 720720 for"
      .. " each GPU; " .. until_then
  end
  -- Slurm would say "Invalid generic resource (gres) specification": the job has shards, and no gres/gpu
  local by_gpu = job.cpus_per_tres and { "--cpus-per-gpu", "say -c, CPUs for the task", " -c2" }
    or job.mem_per_tres and { "--mem-per-gpu", "say --mem", " --mem=8G" }
    or job.tres_freq and { "--gpu-freq", "omit it: the others on the GPU have the same clock", "" }
  if by_gpu then
    return "slurm-share: " .. this .. ", and " .. by_gpu[1] .. " speaks of whole ones; " .. by_gpu[2] .. ", for example sbatch"
      .. " --share-gpu=" .. text .. " --gres=gpu:1 -n1" .. by_gpu[3] .. " job.sh"
  end
  if not job.script and M.gpus_asked(job) == 0 then -- salloc, whose shell's environment cannot be changed here
    return "slurm-share: " .. this .. "; with salloc write the GPU as --gres, or each srun in it would ask for a whole one:"
      .. " salloc --share-gpu=" .. text .. " --gres=gpu:1 -n1"
  end
end

-- Returns why a share is refused; nil: it is not.
local function problem_of(job, n, text, shards_per_gpu)
  if is_part_of_a_heterogeneous_job(job) then return NOT_HETEROGENEOUS end
  for item in string.gmatch(job.tres_per_node or "", "[^,]+") do
    local name = string.match(item, "^gres[/:](%a+)")
    if name == "shard" or name == "mps" then
      return "slurm-share: --gres=" .. name .. " does not go with --share-gpu, which parts the GPUs itself; ask for GPUs,"
        .. " for example sbatch --share-gpu=" .. text .. " --gres=gpu:1 job.sh"
    end
  end
  if says_no_gpus(job) then
    return "slurm-share: --share-gpu=" .. text .. " with no GPU shares nothing; ask for some, for example sbatch --share-gpu="
      .. text .. " --gres=gpu:1 job.sh, or leave --share-gpu away"
  end
  if job.ntasks_per_tres ~= nil and job.ntasks_per_tres ~= slurm.NO_VAL16 then
    return "slurm-share: --ntasks-per-gpu does not go with --share-gpu, which says itself how many tasks a GPU gets;"
      .. " omit it, for example sbatch --share-gpu=" .. text .. " --gres=gpu:1 job.sh"
  end
  local of_a_task = gpus_in(job.tres_per_task)
  if of_a_task and of_a_task > 1 then
    return "slurm-share: " .. of_a_task .. " GPUs for each task (--gpus-per-task) do not go with --share-gpu=" .. text
      .. ", in which a task has one slot on one GPU; leave --share-gpu away, or write for example "
      .. (is_direct(job) and srun_line(job, n, text) or "sbatch --share-gpu=" .. text .. " --gres=gpu:" .. of_a_task .. " job.sh")
  end
  if is_direct(job) and (not M.gpus_asked(job) or tasks_are_open(job)) then
    return "slurm-share: srun --share-gpu without an allocation needs a number of GPUs and one of tasks, for example "
      .. srun_line(job, n, text)
  end
  if is_part(job, n) then return problem_of_part(job, n, text, shards_per_gpu) end
end

-- Requests that nobody has read -------------------------------------------------------------------------------------------
-- sbatch gives the options in a script's #SBATCH lines to our SPANK plugin. slurmrestd, pyslurm and `sbatch --wrap` read no such
-- lines, and scrontab does not pass on what the plugin says of an #SCRON line: the job would run unshared.

local OF_FREE_TEXT = { ["--comment"] = true, ["--extra"] = true, ["--job-name"] = true, ["-J"] = true }
local LEAST_OF_OPTION = "--sh" -- getopt_long(3) takes the beginning of a name if there is one such name

-- Returns the last value that --share-gpu has in the directives of a script; nil: none, or `off`.
function M.asked_in_script(script, is_of_scrontab)
  if not string.find(script, LEAST_OF_OPTION, 1, true) then return nil end
  local asked
  for _, text in ipairs(directives(script, is_of_scrontab and OF_SCRONTAB or OF_SBATCH)) do
    local words = arguments_of(text)
    for at, argument in ipairs(words) do
      local name = string.match(argument, "^%-%-([^=]*)")
      if name and #name >= #LEAST_OF_OPTION - 2 and name == string.sub(M.OPTION, 1, #name)
          and not OF_FREE_TEXT[words[at - 1]] then
        asked = string.match(argument, "=(.*)$") or words[at + 1] or ""
      end
    end
  end
  if asked ~= "off" and asked ~= "0" then return asked end
end

local function is_declined(spank_job_env)
  for _, setting in pairs(spank_job_env or {}) do
    if setting == M.VARIABLE .. "=off" or setting == M.OFF .. "=1" then return true end
  end
  return false
end

-- Returns why a job without a share, whose script asks for one, is refused; nil: it is not.
local function problem_of_script(job, spank_job_env)
  local script = job.script -- Slurm copies it at each access
  if not script or is_declined(spank_job_env) then return nil end
  local of_cron = job.cron_job and M.asked_in_script(script, true)
  if of_cron then
    return "slurm-share: scrontab does not pass --share-gpu=" .. shown(of_cron, 40) .. " to the job, which would run unshared;"
      .. " take it from the #SCRON line, write it into the job's own script as an #SBATCH line, and let the entry submit"
      .. " that script: 0 * * * * sbatch job.sh"
  end
  local asked = M.asked_in_script(script)
  if not asked then return nil end
  if is_part_of_a_heterogeneous_job(job) then return NOT_HETEROGENEOUS end
  local n, line = M.tasks_per_gpu(asked), "an #SBATCH line of the script asks for --share-gpu=" .. shown(asked, 40)
  local example = n and n > 0 and asked or "4"
  if string.find(script, "created by sbatch --wrap", 1, true) then
    return "slurm-share: " .. line .. ", and sbatch --wrap reads no such lines: the job would run unshared; give the option to"
      .. " sbatch: sbatch --share-gpu=" .. example .. " --wrap=COMMAND"
  end
  return "slurm-share: " .. line .. ", which the program that submitted it has not read: the job would run unshared; slurmrestd"
    .. " takes \"spank_environment\": [\"" .. M.VARIABLE .. "=" .. example .. "\"] in the request's \"job\"; from another program,"
    .. " submit the script with `sbatch job.sh`; or delete the line"
end

-- Nodes without slurm-share -----------------------------------------------------------------------------------------------

-- Returns a job's constraint joined with the site's feature; nil and a sentence where Slurm has no form for both. Slurm takes
-- no nested parentheses, and applies a feature outside [a*2&b*2] not to each of the counts (tried on 26.05).
function M.with_feature(features, feature)
  if not features or features == "" or features == feature then return feature end
  local outside = string.gsub(string.gsub(features, "%b()", ""), "%b[]", "")
  local has_groups = outside ~= features
  if string.find(features, "*", 1, true) or (has_groups and string.find(outside, "|", 1, true)) then
    return nil, "slurm-share: here only nodes with the feature " .. feature .. " have slurm-share, and it cannot be joined to"
      .. " --constraint=" .. shown(features, 80) .. "; write a constraint without counts (*), and with | only in one pair of"
      .. " parentheses, for example --constraint='(a|b)'"
  end
  if string.find(outside, "|", 1, true) then features = "(" .. features .. ")" end
  return feature .. "&" .. features
end

-- The allocation -------------------------------------------------------------------------------------------------------

-- Returns the names in job.partition ("a,b"), or the user's default partition where the job names none.
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

-- Returns the CPUs of a node of the job's partitions, the lowest number of them; nil: not known. For a partition of unequal
-- nodes it is the average.
function M.cpus_of_a_node(job, partitions)
  local least
  for _, name in ipairs(M.partitions_of(job, partitions)) do
    local partition = (partitions or {})[name]
    local cpus, nodes = partition and partition.total_cpus, partition and partition.total_nodes
    if cpus and nodes and nodes > 0 then least = math.min(least or math.huge, math.floor(cpus / nodes)) end
  end
  return least
end

-- Returns whether each of these partitions gives whole nodes only: OverSubscribe=EXCLUSIVE, of which slurmctld makes 0.
local function give_whole_nodes(names, partitions)
  for _, name in ipairs(names) do
    local partition = (partitions or {})[name]
    if not partition or partition.max_share ~= 0 then return false end
  end
  return #names > 0
end

-- Returns the memory that a job may have on a node of these partitions in MiB, the lowest of them; nil: no limit is known.
local function most_memory(names, partitions)
  local least
  for _, name in ipairs(names) do
    local most = ((partitions or {})[name] or {}).max_mem_per_node
    if most and most > 0 then least = math.min(least or math.huge, most) end
  end
  return least
end

-- Returns the partitions for a sentence. A user without a default partition may have named none.
local function place(names)
  if #names == 0 then return "this cluster" end
  return "partition " .. shown(table.concat(names, ","), 80)
end

-- Returns why a share is refused in these partitions; nil: it is not. Slurm (26.05.5) leaves a job with gres/shard pending
-- for ever where it gives whole nodes, although they are idle.
local function problem_of_place(job, n, text, names, partitions)
  if not is_part(job, n) or not give_whole_nodes(names, partitions) then return nil end
  local one_task = job.num_tasks == 1 and "-n1" or "--ntasks-per-node=1"
  return "slurm-share: --share-gpu=" .. text .. " with " .. one_task .. " and one GPU is a part of a GPU, and the nodes of "
    .. place(names) .. " are given whole (OverSubscribe=EXCLUSIVE), where it would never start: leave " .. one_task
    .. " away to have all GPUs of a node, with " .. n .. " tasks on each"
end

-- Returns the fields that give a job 1/N of a GPU, as a number of its shards, and a text for the log. Memory is left as it
-- is: all of a node's, as for whole nodes, would leave none for the other parts.
local function part_of(job, n, shards_per_gpu)
  local _, kind = asks_one_gpu(job)
  local shard = string.format("gres/shard:%s%d", kind and kind .. ":" or "", math.floor(shards_per_gpu / n))
  local wish = { shared = USER, num_tasks = 1, min_nodes = 1, max_nodes = 1 }
  for _, field in ipairs(GPU_FIELDS) do
    local count, _, others = gpus_in(job[field])
    if count then wish[field] = others end
  end
  local others = wish.tres_per_node or job.tres_per_node or ""
  wish.tres_per_node = others == "" and shard or shard .. "," .. others
  if job.script then
    -- each srun of the job would ask again for what sbatch put there, and the job has no gres/gpu any more
    wish.environment = {}
    for _, name in ipairs({ "GPUS", "GPUS_PER_NODE", "GPUS_PER_SOCKET", "GPUS_PER_TASK", "TRES_BIND" }) do
      if job.environment["SLURM_" .. name] then wish.environment["SLURM_" .. name] = "" end
    end
    local count, _, tres = gpus_in(job.environment.SLURM_TRES_PER_TASK)
    if count then wish.environment.SLURM_TRES_PER_TASK = tres end
  end
  return wish, "a part of a GPU as " .. shard
end

-- Returns whether the job asks for its GPU by --gpus=1 alone.
local function is_one_gpu_of_the_job(job)
  return is_on_one_node(job) and gpus_in(job.tres_per_job) == 1
    and not (gpus_in(job.tres_per_node) or gpus_in(job.tres_per_task) or gpus_in(job.tres_per_socket))
end

-- Returns the fields of a job that gets the GPUs it asks for on nodes of one user, and a text for the log.
local function gpus_of(job, n, cpus_of_a_node)
  local wish = { shared = job.shared ~= NODE and USER or nil }
  local k = M.gpus_asked(job)
  local told = job.cpus_per_tres ~= nil
  if tasks_are_open(job) and not told and is_one_gpu_of_the_job(job) then
    -- one GPU is on one node, so that the number of tasks there is known
    local _, kind, others = gpus_in(job.tres_per_job)
    local gpu = "gres/gpu:" .. (kind and kind .. ":" or "") .. "1"
    wish.tres_per_node = job.tres_per_node and gpu .. "," .. job.tres_per_node or gpu
    wish.tres_per_job, wish.min_nodes, wish.max_nodes = others, 1, 1
    k = 1
  end
  if k > 0 and tasks_are_open(job) then
    if cpus_of_a_node and n * k > cpus_of_a_node then
      -- With more slots than CPUs the tasks take turns on the CPUs; a job that asked for a CPU each would wait for ever.
      wish.pn_min_cpus = cpus_of_a_node
    else
      wish.ntasks_per_node = n * k -- so that the job gets a CPU for each of them on its node
      if job.min_cpus < n * k then wish.min_cpus = n * k end
    end
    return wish, string.format("%d tasks per node on nodes of one user", n * k)
  end
  if job.tres_per_job and tasks_are_open(job) and not told and job.cpus_per_task == slurm.NO_VAL16 then
    wish.cpus_per_tres = string.format("gres/gpu:%d", n) -- as --cpus-per-gpu=N: Slurm decides how many are on which node
  end
  return wish, "the GPUs it names on nodes of one user"
end

-- Returns the fields to set in a job that shares, and a text for the log. Tasks, CPUs and memory that the user named stay.
function M.wish_for(job, n, text, shards_per_gpu, cpus_of_a_node)
  local wish, what
  if is_part(job, n) then
    wish, what = part_of(job, n, shards_per_gpu)
  elseif M.gpus_asked(job) then
    wish, what = gpus_of(job, n, cpus_of_a_node)
  else
    wish, what = { shared = NODE }, "whole nodes"
    -- as --mem=0; pn_min_memory does not tell: unset, it is NO_VAL64, and --mem-per-cpu is a flag in it
    if job.min_mem_per_node == nil and job.min_mem_per_cpu == nil then wish.min_mem_per_node = 0 end
  end
  local comment = job.admin_comment
  -- sacct -o AdminComment shows it after the end of the job
  wish.admin_comment = (comment and comment ~= "" and comment .. ";" or "") .. "share-gpu=" .. text
  return wish, what
end

local function apply(job, wish)
  for field, value in pairs(wish) do
    if field == "environment" then
      for name, text in pairs(value) do job.environment[name] = text end
    else
      job[field] = value
    end
  end
end

-- Returns fields as text: "min_mem_per_node=0 shared=0".
local function render(wish)
  local items = {}
  for field, value in pairs(wish) do
    if field == "environment" then
      for name, text in pairs(value) do items[#items + 1] = name .. "=" .. text end
    else
      items[#items + 1] = field .. "=" .. tostring(value)
    end
  end
  table.sort(items)
  return table.concat(items, " ")
end

-- Hints ----------------------------------------------------------------------------------------------------------------

-- Words of frameworks that join all tasks of a job into one run. A word that ends in an underscore may go on.
local FRAMEWORKS = {
  "torchrun", "torch.distributed", "init_process_group", "accelerate launch", "deepspeed", "lightning", "pytorch_lightning",
  "jax.distributed", "horovod", "horovodrun", "MASTER_ADDR", "NCCL_", "nccl",
}

local function has_word(text, word)
  local at, open = 1, string.sub(word, -1) == "_"
  while true do
    local first, last = string.find(text, word, at, true)
    if not first then return false end
    local joined = string.find(text, "^[%w_]", first - 1) or (not open and string.find(text, "^[%w_]", last + 1))
    if not joined then return true end
    at = last + 1
  end
end

-- Returns the first of FRAMEWORKS in a script, outside its comments; nil: none.
function M.framework_in(script)
  local lines = string.gsub("\n" .. string.sub(script, 1, SCRIPT_BYTES), "\n[ \t]*#[^\n]*", "\n")
  for _, word in ipairs(FRAMEWORKS) do
    if has_word(lines, word) then return word end
  end
end

-- Returns the number of tasks of a job if it is the one that sbatch, salloc and srun compute where -n is not given, and the
-- options that it comes from (_opt_verify in their opt.c: nodes x sockets x cores x threads); nil: it is not.
local function derived_tasks(job)
  local count, options = nodes_asked(job), {}
  for _, one in ipairs({ { "sockets_per_node", "--sockets-per-node" }, { "cores_per_socket", "--cores-per-socket" },
                         { "threads_per_core", "--threads-per-core or --hint" } }) do
    local value = job[one[1]]
    if value and value ~= slurm.NO_VAL16 then
      count = count * value
      options[#options + 1] = one[2]
    end
  end
  -- --gpus-per-socket needs --sockets-per-node
  if #options == 0 or job.num_tasks ~= count or job.tres_per_socket then return nil end
  return count, (#options == 3 and "-B" or table.concat(options, " and "))
end

-- Returns lines for the user of an accepted job that may not do what was meant. `job` is as it was submitted.
local function hints(job, n, wish, shards_per_gpu, names, partitions)
  local lines = {}
  local is_whole_node = wish.shared == NODE and job.shared ~= NODE
  local asked, most = M.gpus_asked(job), wish.min_mem_per_node == 0 and most_memory(names, partitions)
  if asked and asked > 0 and wish.shared == USER and give_whole_nodes(names, partitions) then
    lines[#lines + 1] = "slurm-share: the nodes of " .. place(names) .. " are given whole (OverSubscribe=EXCLUSIVE): the job gets"
      .. " all GPUs of its node, not " .. asked .. ", with " .. n .. " slots on each"
  end
  if most then
    lines[#lines + 1] = string.format("slurm-share: the job asks for all memory of its nodes, and %s allows %d MiB on a node"
      .. " (MaxMemPerNode): if Slurm refuses it, write --mem=%d", place(names), most, most)
  end
  if is_whole_node and job.array_inx and has_one_task(job) and n > 1 and shards_per_gpu >= n then
    lines[#lines + 1] = "slurm-share: each element of this array takes a whole node for one task; add --gres=gpu:1 and " .. n
      .. " elements share a GPU"
  end
  local derived, options = derived_tasks(job)
  local slots = n * math.max(M.gpus_asked(job) or 1, 1) * nodes_asked(job)
  if derived and derived < slots then
    local tasks = derived == 1 and "one task" or derived .. " tasks"
    lines[#lines + 1] = "slurm-share: srun starts " .. tasks .. " in this job, fewer than it has slots: unless you gave -n" .. derived
      .. ", Slurm computed that number from " .. options .. "; write the number that you want, for example -n" .. slots
  end
  local tasks_of_a_node = wish.ntasks_per_node or job.ntasks_per_node
  local may_be_many = tasks_of_a_node ~= 1 and (wish.num_tasks or job.num_tasks) ~= 1
  local script = may_be_many and job.script -- Slurm copies it at each access
  local word = script and M.framework_in(script)
  if word then
    lines[#lines + 1] = "slurm-share: the script names " .. word .. ": a framework that sees SLURM_NTASKS joins the tasks of"
      .. " this share, which are independent, into one run" .. (n > 1 and ", and NCCL refuses two ranks on one GPU" or "")
      .. '; the page tasks.md, "Independent tasks", says how to keep them apart'
  end
  return lines
end

-- The settings ----------------------------------------------------------------------------------------------------------
-- `slurm-share config write-lua` writes SETTINGS from CONFIG, with the text of CONFIG in it. If CONFIG has changed since then,
-- the settings here are not those of the hooks on the nodes, and sharing counts as off until the command is run again.

local DEFAULTS = {
  mode = "observe", shards_per_gpu = 0, verdict_field = "extra", node_feature = "", exclusive_user_partitions = {},
  exclusive_user_nodes = {}, partitions = {}, config = "",
}
local ABSENT = 2 -- ENOENT

-- Returns the text of a file; empty: there is none; nil: it cannot be read.
local function text_of(path)
  local file, _, problem = io.open(path, "rb")
  if not file then return problem == ABSENT and "" or nil end
  local text = file:read("*a")
  file:close()
  return text
end

-- Runs SETTINGS without access to any function, and returns its table. Raises an error where a value is missing or wrong.
local function run(text)
  assert(string.byte(text) ~= 27) -- compiled
  local chunk
  if setfenv then -- Lua 5.1
    chunk = setfenv(assert(loadstring(text)), {})
  else
    chunk = assert(load(text, text, "t", {}))
  end
  local settings = chunk()
  for key, default in pairs(DEFAULTS) do assert(type(settings[key]) == type(default)) end
  assert(M.MODES[settings.mode] and M.FIELDS[settings.verdict_field])
  for _, mode in pairs(settings.partitions) do assert(M.MODES[mode]) end
  return settings
end

-- Returns the settings in the text of SETTINGS: the keys of DEFAULTS, `partitions` with a mode for each name, `config` with the
-- text of CONFIG. nil: the text is not understood.
function M.settings(text)
  if text == "" then return DEFAULTS end
  local understood, settings = pcall(run, text)
  return understood and settings or nil
end

-- Returns why the settings are not used; nil: they are.
local function problem_of_settings(settings, config, text)
  if not config then return M.CONFIG .. " cannot be read" end
  if not settings then return M.SETTINGS .. " cannot be " .. (text and "understood" or "read") end
  if text == "" and config ~= "" then return M.SETTINGS .. " is missing" end
  if settings.config ~= config then return M.CONFIG .. " is not what " .. M.SETTINGS .. " was written from" end
end

local known = { config = "", text = "", settings = DEFAULTS }

-- Returns the settings in force. Both files are read for every job, in microseconds, and compared when one has changed.
local function current_settings()
  local config, text = text_of(M.CONFIG), text_of(M.SETTINGS)
  if config == known.config and text == known.text then return known.settings end
  local settings = text and M.settings(text)
  local problem = problem_of_settings(settings, config, text)
  if problem then
    slurm.log_error("slurm-share: %s: sharing is switched off until you run `%s` on this host", problem, M.WRITE)
    local off = { is_outdated = true }
    for key, value in pairs(settings or DEFAULTS) do off[key] = value end
    off.mode, off.partitions = "off", {}
    settings = off
  end
  known = { config = config, text = text, settings = settings }
  return settings
end

local function mode_of_partition(name, settings) return settings.partitions[name] or settings.mode end

-- Returns the mode of a job in these partitions: of several, the one that does more.
function M.mode_for(names, settings)
  if #names == 0 then return settings.mode end
  local mode = "off"
  for _, name in ipairs(names) do
    local its = mode_of_partition(name, settings)
    if its == "on" then return its end
    if its == "observe" then mode = its end
  end
  return mode
end

-- The verdict ---------------------------------------------------------------------------------------------------------
-- The controller's word on the job's share, for the hooks on the nodes (slurm_share/share/rules/verdict.py): the last item of
-- `extra` or `comment`. Verdicts that a user wrote are removed from every job, since on exclusive_user_nodes that of an
-- ordinary job counts, too.

local ITEM = M.VERDICT .. "="
-- The last field of a verdict on a job that shares: the share, as in admin_comment, which other tools may overwrite.
local SHARE = ",share-gpu="
-- `slurm-share off` and `on` may replace it by the longest one, with the same share.
local ROOM = #ITEM + #"on,runs=999999"

-- Returns the verdicts among the items of a text (nil: none), and the other items, each joined again.
local function parted(text)
  local verdicts, others = {}, {}
  for part in string.gmatch((text or "") .. ";", "([^;]*);") do
    local list = string.sub(part, 1, #ITEM) == ITEM and verdicts or others
    list[#list + 1] = part
  end
  return #verdicts > 0 and table.concat(verdicts, ";") or nil, table.concat(others, ";")
end

-- Returns the text of a field followed by this verdict. Returns nil and a sentence if Slurm would refuse a text of that
-- length, now or with the longest verdict that the job may have later.
local function with_verdict(text, item, field)
  local _, own = parted(text)
  local room = math.max(#item, ROOM + #(string.match(item, ",share%-gpu=[^;]*") or "")) + 1
  if own == "" then return item end
  if #own + room <= M.FIELD_MAX_BYTES then return own .. ";" .. item end
  return nil, "slurm-share: --" .. field .. " has " .. #own .. " bytes, and Slurm takes " .. M.FIELD_MAX_BYTES .. ", of which "
    .. room .. " are needed for what the nodes are told about the job's share; make it shorter"
end

local function forget_verdicts(job)
  for field in pairs(M.FIELDS) do
    local verdict, own = parted(job[field])
    if verdict then job[field] = own end
  end
end

-- Writes the verdict, and returns true. Where the field has no room for it, tells the user and returns false.
local function give_verdict(job, settings, verdict)
  local text, problem = with_verdict(job[settings.verdict_field], ITEM .. verdict, settings.verdict_field)
  if not text then
    slurm.log_user("%s", problem)
    return false
  end
  job[settings.verdict_field] = text
  return true
end

-- Writes the verdict of an ordinary job. Where the field has no room, the job is not refused: the nodes' own settings count.
local function give_ordinary_verdict(job, settings, verdict)
  local field = settings.verdict_field
  local text = with_verdict(job[field], ITEM .. verdict, field)
  if text then
    job[field] = text
  else
    slurm.log_info("slurm-share: the job of uid %s has no room in its %s for %s; the nodes go by their own settings",
      tostring(job.user_id), field, ITEM .. verdict)
  end
end

-- Returns the verdict of a job that is only observed: it tells the hooks what the job would have been given.
local function observed(wish)
  if not wish then return "observe,refused" end
  local items = { "observe" }
  if wish.shared == NODE then items[#items + 1] = "whole" end
  if string.find(wish.tres_per_node or "", "gres/shard", 1, true) then items[#items + 1] = "part" end
  if wish.ntasks_per_node then items[#items + 1] = "tasks=" .. wish.ntasks_per_node end
  return table.concat(items, ",")
end

-- Returns slurmctld's own user, which is SlurmUser. A script is not told slurm.conf.
function M.controllers_uid()
  local status = io.open("/proc/self/status", "r")
  local uid = status and string.match(status:read("*a"), "\nUid:%s+(%d+)")
  if status then status:close() end
  return tonumber(uid)
end

local function may_administer(uid) return uid == 0 or uid == M.controllers_uid() end

local function is_pending(old) return old.job_state % 256 == 0 end

-- Returns a verdict without the number of runs for which it is valid.
local function of_all_runs(verdict) return (string.gsub(verdict or "", ",runs=%d+", "")) end

-- Returns why a change of the verdict is refused; nil: it is not. A new text without a verdict gets that of the job.
local function problem_of_verdict(job, old, uid)
  for field in pairs(M.FIELDS) do
    if job[field] ~= nil then
      local was, now = parted(old[field]), (parted(job[field]))
      if was ~= nil and (now == nil or (now == was and not may_administer(uid))) then
        local text, problem = with_verdict(job[field], was, field)
        if not text then return problem end
        job[field] = text
      elseif now ~= was and not may_administer(uid) then
        return "slurm-share: only administrators may set " .. shown(now, 60) .. " in " .. field .. "; omit it, and the job"
          .. " keeps " .. (was and shown(was, 60) or "none")
      elseif now ~= was and not is_pending(old) and of_all_runs(now) ~= of_all_runs(was) then
        return "slurm-share: the job runs and keeps what it was given; " .. shown(now, 60) .. " can be set while a job is"
          .. " pending"
      end
    end
  end
end

-- The functions that Slurm calls ---------------------------------------------------------------------------------------

-- Logs what would be done. Not for the question of `slurm-share doctor`, which every node asks.
local function log_would(job, names, what)
  if job.reservation == M.QUESTION then return end
  slurm.log_info("slurm-share: would: for the job of uid %s in %s: %s", tostring(job.user_id), place(names), shown(what, 2048))
end

-- Keeps the nodes of an ordinary job to its user in the partitions of exclusive_user_partitions.
local function keep_to_one_user(job, names, settings)
  if job.shared == NODE or job.shared == USER then return end
  local listed, observed = {}, false
  for _, name in ipairs(settings.exclusive_user_partitions) do listed[name] = true end
  for _, name in ipairs(names) do
    local mode = listed[name] and mode_of_partition(name, settings)
    if mode == "on" then
      job.shared = USER
      return
    end
    observed = observed or mode == "observe"
  end
  if observed then log_would(job, names, "nodes of one user (shared=" .. USER .. "), as exclusive_user_partitions says") end
end

-- Tells the user why a job is refused, and the log, since slurmrestd and scrontab show the user a code alone.
local function refuse(job, problem, code)
  slurm.log_user("%s", problem)
  slurm.log_info("slurm-share: refused a job of uid %s: %s", tostring(job.user_id),
    shown(string.gsub(problem, "^slurm%-share: ", ""), 2048))
  return code or slurm.ERROR
end

function M.submit(job, partitions, _uid)
  local spank_job_env = job.spank_job_env -- Slurm copies it at each access
  local harm = problem_of_environment(spank_job_env) -- in every mode: the hooks start for every job
  if harm then return refuse(job, harm) end
  local settings = current_settings()
  local names = M.partitions_of(job, partitions)
  local n, text, problem = M.share(spank_job_env)
  local code = problem and slurm.ESLURM_INVALID_GRES -- not of our plugin: a program that shows the code alone
  local mode = M.mode_for(names, settings)
  forget_verdicts(job)
  if not n and not problem then
    local unread = mode ~= "off" and problem_of_script(job, spank_job_env)
    if unread and mode == "on" then return refuse(job, unread, slurm.ESLURM_INVALID_GRES) end
    if unread then log_would(job, names, "refuse it: " .. string.gsub(unread, "^slurm%-share: ", "")) end
    keep_to_one_user(job, names, settings)
    local keeps_nodes = #settings.exclusive_user_partitions > 0 or #settings.exclusive_user_nodes > 0
    if mode == "off" and keeps_nodes then give_ordinary_verdict(job, settings, mode) end
    return slurm.SUCCESS
  end
  local no_effect = "slurm-share: --share-gpu=" .. text .. " has no effect"
  if mode == "off" then
    local until_when = settings.is_outdated and " until an administrator runs `" .. M.WRITE .. "` on the controller" or ""
    local off = ": sharing is switched off in " .. place(names) .. until_when .. "; the job runs as if it were not there"
    slurm.log_user("%s", no_effect .. off)
    return give_verdict(job, settings, mode) and slurm.SUCCESS or slurm.ERROR
  end
  if n then
    problem = problem_of(job, n, text, settings.shards_per_gpu) or problem_of_place(job, n, text, names, partitions)
  end
  local constraint
  if not problem and settings.node_feature ~= "" then
    constraint, problem = M.with_feature(job.features, settings.node_feature)
  end
  local wish, what
  if not problem then
    wish, what = M.wish_for(job, n, text, settings.shards_per_gpu, M.cpus_of_a_node(job, partitions))
    wish.features = constraint
  end
  if mode == "observe" then
    local refusal = problem and "refuse it: " .. string.gsub(problem, "^slurm%-share: ", "")
    log_would(job, names, refusal or what .. " (" .. render(wish) .. ")")
    local only = " yet: " .. place(names) .. " only observes; the job runs as if it were not there"
    slurm.log_user("%s", no_effect .. only)
    return give_verdict(job, settings, observed(wish)) and slurm.SUCCESS or slurm.ERROR
  end
  if problem then return refuse(job, problem, code) end
  if not give_verdict(job, settings, mode .. SHARE .. text) then return slurm.ERROR end
  local lines = hints(job, n, wish, settings.shards_per_gpu, names, partitions)
  apply(job, wish)
  for _, line in ipairs(lines) do slurm.log_user("%s", line) end
  return slurm.SUCCESS
end

-- Returns the share of a job in the queue as text; nil: it has none. admin_comment may be another script's by now.
local function share_of(job)
  local text = string.match(";" .. (job.admin_comment or ""), ";share%-gpu=([^;]*)")
  for field in pairs(M.FIELDS) do
    text = text or string.match(parted(job[field]) or "", "^[^;]*,share%-gpu=([^;]*)")
  end
  return text
end

-- Refuses changes by `scontrol update` to fields of a job that follow from its share. A part with four tasks would have four
-- slots, and in another partition a node may not be kept to its user. root may change them. A job without a share that moves
-- to a partition of exclusive_user_partitions is not made exclusive: the hooks on the node check who is there.
function M.modify(job, old, _partitions, uid)
  local wrong = problem_of_verdict(job, old, uid)
  if wrong then
    slurm.log_user("%s", wrong)
    return slurm.ERROR
  end
  local text = share_of(old)
  if not text or may_administer(uid) then return slurm.SUCCESS end
  local asked = (job.partition ~= nil and job.partition ~= old.partition and "its partition")
    or (job.num_tasks ~= slurm.NO_VAL and "its tasks") or (job.ntasks_per_node ~= slurm.NO_VAL16 and "its tasks per node")
    or (job.shared ~= slurm.NO_VAL16 and "how exclusive it is")
    or (job.features ~= nil and current_settings().node_feature ~= "" and "its constraint")
  for _, field in ipairs(GPU_FIELDS) do
    if job[field] ~= nil then asked = asked or "its GPUs" end
  end
  if not asked then return slurm.SUCCESS end
  slurm.log_user("%s", "slurm-share: a job with --share-gpu=" .. shown(text, 40) .. " cannot change " .. asked .. ", which its share"
    .. " was worked out from; cancel it and submit it again")
  return slurm.ERROR
end

slurm_job_submit = M.submit
slurm_job_modify = M.modify
return M
