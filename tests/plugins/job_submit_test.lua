-- lua5.1 job_submit_test.lua SCRIPT: prints each row that does not hold; exit code 1 if there was one.
slurm = { NO_VAL = 4294967294, NO_VAL16 = 65534, SUCCESS = 0, ERROR = -1, ESLURM_INVALID_GRES = 2072 }
local said -- the last line to a user
local lines, logged, errors = {}, {}, {} -- all of them; the lines of slurmctld's log
function slurm.log_user(form, ...)
  said = string.format(form, ...)
  lines[#lines + 1] = said
end
function slurm.log_info(form, ...) logged[#logged + 1] = string.format(form, ...) end
function slurm.log_error(form, ...) errors[#errors + 1] = string.format(form, ...) end
local function hush() said, lines, logged, errors = nil, {}, {}, {} end
local share = dofile(arg[1])

local failures = 0
local function equal(row, what, found, wanted)
  if found ~= wanted then
    failures = failures + 1
    print(string.format("%s: %s is %s, not %s", row, what, tostring(found), tostring(wanted)))
  end
end

local function has(text, words) return text ~= nil and string.find(text, words, 1, true) ~= nil end

-- a job as sbatch describes it where nothing was asked (26.05 and 24.11); salloc and srun send no script
local function job(asked)
  local d = { shared = 65534, num_tasks = slurm.NO_VAL, ntasks_per_node = slurm.NO_VAL16, cpus_per_task = slurm.NO_VAL16,
              ntasks_per_tres = slurm.NO_VAL16, min_cpus = 1, min_nodes = slurm.NO_VAL, max_nodes = slurm.NO_VAL,
              sockets_per_node = slurm.NO_VAL16, user_id = 2001, script = "#!/bin/bash\nsrun true\n", environment = {} }
  for key, value in pairs(asked) do
    if value == "nothing" then d[key] = nil else d[key] = value end
  end
  return d
end
local function with(n, asked)
  asked = asked or {}
  asked.spank_job_env = { "OTHER=1", "SHARE_GPU=" .. n }
  return job(asked)
end
share.CONFIG, share.SETTINGS = os.tmpname(), os.tmpname()
local function write(path, text)
  local file = assert(io.open(path, "wb"))
  file:write(text)
  file:close()
end
local function literal(value)
  if type(value) == "string" then return string.format("%q", value) end
  if type(value) ~= "table" then return tostring(value) end
  local items = {}
  for key, item in pairs(value) do items[#items + 1] = "[" .. literal(key) .. "] = " .. literal(item) end
  return "{" .. table.concat(items, ",") .. "}"
end
-- Both files, with defaults for what is not given. config.toml has the same text, which the script only compares.
local function configure(given)
  local all = { mode = "observe", shards_per_gpu = 0, verdict_field = "extra", node_feature = "", partitions = {},
                exclusive_user_partitions = {}, exclusive_user_nodes = {} }
  for key, value in pairs(given) do all[key] = value end
  all.config = literal(all)
  write(share.CONFIG, all.config)
  write(share.SETTINGS, "return " .. literal(all))
  return share.settings("return " .. literal(all))
end
local ON = { mode = "on", shards_per_gpu = 720720 }
configure(ON)

-- what a job is allocated ------------------------------------------------------------------------------------------
local rows = {
  { "an ordinary job stays as it is", job({}), { shared = 65534, min_cpus = 1 } },
  { "off is an ordinary job", with("off"), { shared = 65534 } },
  { "whole node, all memory", with("4"), { shared = 0, min_mem_per_node = 0, ntasks_per_node = slurm.NO_VAL16 } },
  { "its own --mem stays", with("4", { min_mem_per_node = 1000 }), { shared = 0, min_mem_per_node = 1000 } },
  { "its own --mem-per-cpu stays", with("4", { min_mem_per_cpu = 100 }), { shared = 0 } },
  { "one GPU", with("4", { tres_per_node = "gres/gpu:1" }), { shared = 2, ntasks_per_node = 4, min_cpus = 4 } },
  { "one GPU, unnumbered", with("4", { tres_per_node = "gres/gpu" }), { shared = 2, ntasks_per_node = 4 } },
  { "a type", with("3", { tres_per_node = "gres/gpu:h200:2" }), { shared = 2, ntasks_per_node = 6, min_cpus = 6 } },
  { "a type, unnumbered", with("3", { tres_per_node = "gres/gpu:h200" }), { ntasks_per_node = 3 } },
  { "two types", with("2", { tres_per_node = "gres/gpu:a:1,gres/gpu:b:2" }), { ntasks_per_node = 6 } },
  { "an equals sign", with("2", { tres_per_node = "gres/gpu=2" }), { ntasks_per_node = 4 } },
  { "beside another gres", with("2", { tres_per_node = "gres/nvme:1,gres/gpu:1" }), { ntasks_per_node = 2 } },
  { "another gres alone", with("2", { tres_per_node = "gres/nvme:1" }), { shared = 0 } },
  { "gpumem is no GPU", with("2", { tres_per_node = "gres/gpumem:1" }), { shared = 0 } },
  { "--exclusive stays", with("4", { tres_per_node = "gres/gpu:1", shared = 0 }), { shared = 0 } },
  { "--oversubscribe does not", with("4", { tres_per_node = "gres/gpu:1", shared = 1 }), { shared = 2 } },
  { "-n stays", with("4", { tres_per_node = "gres/gpu:1", num_tasks = 3 }),
    { num_tasks = 3, ntasks_per_node = slurm.NO_VAL16, min_cpus = 1 } },
  { "--ntasks-per-node stays", with("4", { tres_per_node = "gres/gpu:1", ntasks_per_node = 3 }), { ntasks_per_node = 3 } },
  { "more CPUs stay", with("4", { tres_per_node = "gres/gpu:1", min_cpus = 9 }), { min_cpus = 9 } },
  { "--gpus: CPUs by GPU", with("4", { tres_per_job = "gres/gpu:2" }),
    { shared = 2, cpus_per_tres = "gres/gpu:4", ntasks_per_node = slurm.NO_VAL16 } },
  { "--gpus=1: its node", with("4", { tres_per_job = "gres/gpu:1" }),
    { shared = 2, tres_per_node = "gres/gpu:1", tres_per_job = "", ntasks_per_node = 4, min_cpus = 4, max_nodes = 1 } },
  { "--gpus=1, a type", with("4", { tres_per_job = "gres/gpu:h200:1", tres_per_node = "gres/nvme:1" }),
    { tres_per_node = "gres/gpu:h200:1,gres/nvme:1", tres_per_job = "", max_nodes = 1 } },
  { "--gpus=1 -N2", with("4", { tres_per_job = "gres/gpu:1", min_nodes = 2, max_nodes = 2 }),
    { tres_per_job = "gres/gpu:1", cpus_per_tres = "gres/gpu:4", max_nodes = 2 } },
  { "--gpus=1 -n2", with("4", { tres_per_job = "gres/gpu:1", num_tasks = 2 }), { tres_per_job = "gres/gpu:1", num_tasks = 2 } },
  { "--gpus=1 --cpus-per-gpu", with("4", { tres_per_job = "gres/gpu:1", cpus_per_tres = "gres/gpu:2" }),
    { tres_per_job = "gres/gpu:1", cpus_per_tres = "gres/gpu:2", ntasks_per_node = slurm.NO_VAL16 } },
  { "--gpus=1K is 1024", with("4", { tres_per_job = "gres/gpu:1K" }), { cpus_per_tres = "gres/gpu:4", shared = 2 } },
  { "--gpus -n", with("4", { tres_per_job = "gres/gpu:2", num_tasks = 2 }), { shared = 2, min_cpus = 1 } },
  { "--gpus -c", with("4", { tres_per_job = "gres/gpu:2", cpus_per_task = 2 }), { shared = 2 } },
  { "--gpus --cpus-per-gpu", with("4", { tres_per_job = "gres/gpu:2", cpus_per_tres = "gres/gpu:1" }),
    { cpus_per_tres = "gres/gpu:1" } },
  { "--gpus-per-task", with("4", { tres_per_task = "gres/gpu=1", num_tasks = 2 }), { shared = 2, min_cpus = 1 } },
  { "-c alone is no GPU", with("4", { tres_per_task = "cpu=2" }), { shared = 0 } },
}
local untouched = { "min_mem_per_node", "cpus_per_tres", "tres_per_job", "max_nodes" }
-- what job_submit/lua lets a script set, of what we set
local settable = {}
local fields = "extra comment shared min_mem_per_node ntasks_per_node min_cpus pn_min_cpus cpus_per_tres tres_per_node tres_per_job "
  .. "tres_per_task tres_per_socket num_tasks min_nodes max_nodes admin_comment environment"
for field in string.gmatch(fields, "%S+") do settable[field] = true end
for _, row in ipairs(rows) do
  local name, d, wanted = unpack(row)
  local before = {}
  for _, key in ipairs(untouched) do before[key] = d[key] end
  equal(name, "answer", share.submit(d, {}, 2001), slurm.SUCCESS)
  for key, value in pairs(wanted) do equal(name, key, d[key], value) end
  for _, key in ipairs(untouched) do
    if wanted[key] == nil and not (key == "min_mem_per_node" and d.shared == 0) then equal(name, key, d[key], before[key]) end
  end
end
equal("all of them", "lines to a user", #lines, 0)
local d = with("4", { min_mem_per_cpu = 100 })
share.submit(d, {}, 2001)
equal("--mem-per-cpu", "min_mem_per_node", d.min_mem_per_node, nil)

for _, field in ipairs({ "tres_per_node", "tres_per_job", "tres_per_task" }) do
  equal("no GPU, " .. field, "answer", share.submit(with("4", { [field] = "gres/gpu:0" }), {}, 2001), slurm.ERROR)
  equal("no GPU, " .. field, "way out", string.match(lines[#lines], "%-%-gres=gpu:1 job.sh") ~= nil, true)
end

-- more slots than a node has CPUs: what is asked is what there is, and the tasks take turns
for _, cpus in ipairs({ 8, 11, 12 }) do
  local d = with("6", { tres_per_node = "gres/gpu:2", partition = "gpu" })
  share.submit(d, { gpu = { total_cpus = 3 * cpus, total_nodes = 3, flag_default = 1 } }, 2001)
  local name = "12 slots on " .. cpus .. " CPUs"
  equal(name, "pn_min_cpus", d.pn_min_cpus, cpus < 12 and cpus or nil)
  equal(name, "ntasks_per_node", d.ntasks_per_node, cpus < 12 and slurm.NO_VAL16 or 12)
end
equal("unlike partitions", "CPUs", share.cpus_of_a_node({ partition = "a,b" },
  { a = { total_cpus = 64, total_nodes = 2 }, b = { total_cpus = 40, total_nodes = 4 } }), 10)
equal("no partition known", "CPUs", share.cpus_of_a_node({}, nil), nil)

-- a part of a GPU -------------------------------------------------------------------------------------------------
local ONE = "gres/shard:180180"
local parts = { -- what was asked, and the gres it becomes
  { { tres_per_node = "gres/gpu:1", num_tasks = 1 }, ONE },
  { { tres_per_node = "gres/gpu", num_tasks = 1 }, ONE },
  { { tres_per_node = "gres/gpu:1", num_tasks = 1, array_inx = "1-8" }, ONE },
  { { tres_per_node = "gres/gpu:1", num_tasks = 1, script = "nothing" }, ONE },
  { { tres_per_node = "gres/gpu:1", num_tasks = 1, min_nodes = 1, max_nodes = 1 }, ONE },
  { { tres_per_node = "gres/gpu:1", num_tasks = 1, min_nodes = 0 }, ONE },
  { { tres_per_node = "gres/gpu:1", num_tasks = 1, min_nodes = "nothing" }, ONE },
  { { tres_per_node = "gres/gpu:h200:1", num_tasks = 1 }, "gres/shard:h200:180180" },
  { { tres_per_node = "gres/gpu:h200", num_tasks = 1 }, "gres/shard:h200:180180" },
  { { tres_per_node = "gres/nvme:1,gres/gpu:1", num_tasks = 1 }, ONE .. ",gres/nvme:1" },
  { { tres_per_node = "gres/gpu:1", num_tasks = 1, ntasks_per_node = 4 }, ONE },
  { { tres_per_node = "gres/gpu:1", ntasks_per_node = 1 }, ONE },
  { { tres_per_node = "gres/gpu:1", ntasks_per_node = 1, min_nodes = 1, max_nodes = 2 }, ONE },
  { { tres_per_node = "gres/gpu:1", num_tasks = 1, shared = 1 }, ONE },
  { { tres_per_node = "gres/gpu:1", num_tasks = 1, shared = 2 }, ONE },
  { { tres_per_job = "gres/gpu:1", num_tasks = 1 }, ONE },
  { { tres_per_job = "gres/gpu:h200:1", num_tasks = 1 }, "gres/shard:h200:180180" },
  { { tres_per_job = "gres/gpu:1", ntasks_per_node = 1, tres_per_node = "gres/nvme:1" }, ONE .. ",gres/nvme:1" },
  { { tres_per_job = "gres/gpu:1", tres_per_node = "gres/gpu:1", num_tasks = 1 }, ONE },
  { { tres_per_task = "gres/gpu=1", num_tasks = 1 }, ONE },
  { { tres_per_task = "cpu=2,gres/gpu=1", num_tasks = 1 }, ONE },
  { { tres_per_socket = "gres/gpu:1", sockets_per_node = 1, num_tasks = 1 }, ONE },
}
for number, row in ipairs(parts) do
  local asked, gres = row[1], row[2]
  local d = with("4", asked)
  local name = "part, row " .. number
  local wish = share.wish_for(d, 4, "4", 720720, nil)
  for field in pairs(wish) do equal(name, "can be set: " .. field, settable[field], true) end
  local ntasks_per_node = d.ntasks_per_node
  hush()
  equal(name, "answer", share.submit(d, {}, 2001), slurm.SUCCESS)
  equal(name, "tres_per_node", d.tres_per_node, gres)
  equal(name, "tres_per_job", d.tres_per_job or "", "")
  equal(name, "tres_per_socket", d.tres_per_socket or "", "")
  equal(name, "tres_per_task", d.tres_per_task or "", asked.tres_per_task == "cpu=2,gres/gpu=1" and "cpu=2" or "")
  equal(name, "shared", d.shared, 2)
  equal(name, "num_tasks", d.num_tasks, 1)
  equal(name, "max_nodes", d.max_nodes, 1)
  equal(name, "ntasks_per_node", d.ntasks_per_node, ntasks_per_node)
  equal(name, "min_mem_per_node", d.min_mem_per_node, nil)
  equal(name, "admin_comment", d.admin_comment, "share-gpu=4")
  equal(name, "line", said, nil)
end
local whole = { -- these keep their whole GPU
  with("1", { tres_per_node = "gres/gpu:1", num_tasks = 1 }),
  with("4", { tres_per_node = "gres/gpu:1", num_tasks = 1, shared = 0 }),
  with("4", { tres_per_node = "gres/gpu:1", num_tasks = 2 }),
  with("4", { tres_per_node = "gres/gpu:2", num_tasks = 1 }),
  with("4", { tres_per_node = "gres/gpu:1K", num_tasks = 1 }),
  with("4", { tres_per_node = "gres/gpu:a:1,gres/gpu:b:1", num_tasks = 1 }),
  with("4", { tres_per_job = "gres/gpu:2", num_tasks = 1 }),
  with("4", { tres_per_socket = "gres/gpu:1", sockets_per_node = 2, num_tasks = 1 }),
  with("4", { tres_per_node = "gres/gpu:1", ntasks_per_node = 1, min_nodes = 2 }),
}
local direct_one = with("4", { tres_per_node = "gres/gpu:1", num_tasks = 1, script = "nothing" })
table.insert(direct_one.spank_job_env, share.DIRECT .. "=1")
whole[#whole + 1] = direct_one
for number, d in ipairs(whole) do
  local name = "no part, row " .. number
  local gres, gpus = d.tres_per_node, d.tres_per_job
  equal(name, "answer", share.submit(d, {}, 2001), slurm.SUCCESS)
  equal(name, "tres_per_node", d.tres_per_node, gres)
  equal(name, "tres_per_job", d.tres_per_job, gpus)
end
for n, shards in pairs({ [2] = 360360, [7] = 102960, [16] = 45045, [17] = 42395, [60] = 12012 }) do
  local d = with(tostring(n), { tres_per_node = "gres/gpu:1", num_tasks = 1 })
  share.submit(d, {}, 2001)
  equal("1/" .. n, "tres_per_node", d.tres_per_node, "gres/shard:" .. shards)
end

-- each srun in the job would ask again for what sbatch left in its environment
d = with("4", { tres_per_task = "cpu=2,gres/gpu=1", num_tasks = 1, environment = {
  SLURM_GPUS = "1", SLURM_GPUS_PER_NODE = "1", SLURM_TRES_BIND = "gres/gpu:per_task:1",
  SLURM_TRES_PER_TASK = "cpu=2,gres/gpu=1", SLURM_CPUS_PER_TASK = "2", HOME = "/home/alice" } })
share.submit(d, {}, 2001)
for name, wanted in pairs({ SLURM_GPUS = "", SLURM_GPUS_PER_NODE = "", SLURM_TRES_BIND = "", SLURM_TRES_PER_TASK = "cpu=2",
                            SLURM_CPUS_PER_TASK = "2", HOME = "/home/alice" }) do
  equal("environment of a part", name, d.environment[name], wanted)
end
equal("environment of a part", "SLURM_GPUS_PER_SOCKET", d.environment.SLURM_GPUS_PER_SOCKET, nil)
d = with("4", { tres_per_node = "gres/gpu:1", num_tasks = 2, environment = { SLURM_GPUS_PER_NODE = "1" } })
share.submit(d, {}, 2001)
equal("environment of a whole GPU", "SLURM_GPUS_PER_NODE", d.environment.SLURM_GPUS_PER_NODE, "1")

-- the Prolog's sign of a part is one task with one GPU on a node of one user: whatever was asked, no whole GPU leaves with it
local forms = { -- and whether it is one GPU on a node where there is one task
  { { tres_per_node = "gres/gpu:1" }, true }, { { tres_per_node = "gres/gpu:2" }, false },
  { { tres_per_job = "gres/gpu:1" }, true }, { { tres_per_job = "gres/gpu:2" }, false },
  { { tres_per_job = "gres/gpu:h200:1", tres_per_node = "gres/gpu:h200:1" }, true }, { { tres_per_task = "gres/gpu=1" }, true },
  { { tres_per_socket = "gres/gpu:1", sockets_per_node = 1 }, true }, { {}, false },
}
local seen = 0
for _, form in ipairs(forms) do
  for _, num_tasks in ipairs({ slurm.NO_VAL, 1, 2 }) do
    for _, ntasks_per_node in ipairs({ slurm.NO_VAL16, 1, 4 }) do
      for _, min_nodes in ipairs({ slurm.NO_VAL, 1, 2 }) do
        for _, shared in ipairs({ 65534, 0, 1, 2 }) do
          for _, n in ipairs({ "1", "4" }) do
            local d = with(n, { num_tasks = num_tasks, ntasks_per_node = ntasks_per_node, shared = shared })
            d.min_nodes = min_nodes
            for field, value in pairs(form[1]) do d[field] = value end
            equal("a grid of jobs", "answer", share.submit(d, {}, 2001), slurm.SUCCESS)
            local nodes = d.min_nodes == slurm.NO_VAL and 1 or d.min_nodes
            local tasks = d.num_tasks -- SLURM_JOB_NTASKS in the Prolog, as slurmctld makes it
            if tasks == slurm.NO_VAL and d.ntasks_per_node ~= slurm.NO_VAL16 then tasks = d.ntasks_per_node * nodes end
            if n == "4" and tasks == 1 and d.shared == 2 and form[2] then
              seen = seen + 1
              local gres = string.match(d.tres_per_node or "", "^%a+/%a+")
              equal("one task on one GPU of a user's node", "tres_per_node", gres, "gres/shard")
              equal("one task on one GPU of a user's node", "max_nodes", d.max_nodes, 1)
            elseif string.match(d.tres_per_node or "", "shard") then
              equal("a part", "one task of N on one user's node", false, true)
            end
          end
        end
      end
    end
  end
end
equal("a grid of jobs", "parts seen", seen > 50, true)

-- parts that cannot be
local no_parts = {
  { 0, {}, "4 tasks on it", "shards_per_gpu = 720720 to " },
  { 0, {}, "GresTypes=gpu,shard", "until then leave -n1 away" },
  { 0, { num_tasks = slurm.NO_VAL, ntasks_per_node = 1 }, "with --ntasks-per-node=1", "leave --ntasks-per-node=1 away" },
  { 3, {}, "no more than 3 of them", "shards_per_gpu in " },
  { 4, { cpus_per_tres = "gres/gpu:2" }, "--cpus-per-gpu", "--gres=gpu:1 -n1 -c2 job.sh" },
  { 4, { mem_per_tres = "gres/gpu:100" }, "--mem-per-gpu", "-n1 --mem=8G job.sh" },
  { 4, { tres_freq = "gpu:low" }, "--gpu-freq", "-n1 job.sh" },
  { 4, { tres_per_node = "nothing", tres_per_job = "gres/gpu:1", script = "nothing" }, "with salloc",
    "salloc --share-gpu=4,mem=8192M --gres=gpu:1 -n1" },
}
for number, row in ipairs(no_parts) do
  configure({ mode = "on", shards_per_gpu = row[1] })
  local asked = { tres_per_node = "gres/gpu:1", num_tasks = 1 }
  for field, value in pairs(row[2]) do asked[field] = value end
  local d = with("4,mem=8192M", asked)
  local name = "no such part, row " .. number
  hush()
  equal(name, "answer", share.submit(d, {}, 2001), slurm.ERROR)
  equal(name, "sentence: " .. row[3], has(said, row[3]) and has(said, row[4]) and has(said, "--share-gpu=4,mem=8192M"), true)
  equal(name, "one line", #lines, 1)
  equal(name, "shared", d.shared, 65534)
end
configure({ mode = "on", shards_per_gpu = 4 })
d = with("4", { tres_per_node = "gres/gpu:1", num_tasks = 1 })
share.submit(d, {}, 2001)
equal("four shards", "tres_per_node", d.tres_per_node, "gres/shard:1")
configure(ON)

-- nodes without slurm-share -----------------------------------------------------------------------------------------
local constraints = { -- the user's, and the job's; none: there is no form for both
  { "nothing", "here" }, { "", "here" }, { "here", "here" }, { "a", "here&a" }, { "a&b", "here&a&b" },
  { "a|b", "here&(a|b)" }, { "a&b|c", "here&(a&b|c)" }, { "(a|b)&c", "here&(a|b)&c" }, { "[a|b]", "here&[a|b]" },
  { "a|(b&c)" }, { "[a*1&b*1]" }, { "a*2" },
}
configure({ mode = "on", shards_per_gpu = 720720, node_feature = "here" })
for _, row in ipairs(constraints) do
  d = with("4", { features = row[1] })
  hush()
  equal("constraint " .. row[1], "answer", share.submit(d, {}, 2001), row[2] and slurm.SUCCESS or slurm.ERROR)
  equal("constraint " .. row[1], "features", d.features, row[2] or row[1])
  equal("constraint " .. row[1], "sentence", has(said, "cannot be joined to --constraint=" .. row[1]), row[2] == nil)
end
d = job({ features = "a" })
share.submit(d, {}, 2001)
equal("an ordinary job", "features", d.features, "a")
local shared_job = { partition = "gpu", admin_comment = "share-gpu=4" }
local unchanged = { num_tasks = slurm.NO_VAL, ntasks_per_node = slurm.NO_VAL16, shared = slurm.NO_VAL16, features = "a" }
equal("a changed constraint", "answer", share.modify(unchanged, shared_job, {}, 2001), slurm.ERROR)
configure(ON)
equal("where all nodes have slurm-share", "answer", share.modify(unchanged, shared_job, {}, 2001), slurm.SUCCESS)
d = with("4", { features = "a|(b&c)" })
share.submit(d, {}, 2001)
equal("where all nodes have slurm-share", "features", d.features, "a|(b&c)")

-- what stays to be read ---------------------------------------------------------------------------------------------
for comment, wanted in pairs({ [""] = "share-gpu=4,mem=8192M", ["ticket 7"] = "ticket 7;share-gpu=4,mem=8192M" }) do
  d = with("4,mem=8192M", { admin_comment = comment })
  share.submit(d, {}, 2001)
  equal("comment " .. comment, "admin_comment", d.admin_comment, wanted)
end
d = job({})
share.submit(d, {}, 2001)
equal("no share", "admin_comment", d.admin_comment, nil)

-- hints --------------------------------------------------------------------------------------------------------------
local torch = "#!/bin/bash\nsrun torchrun train.py\n"
local hints = { -- what was asked, and a word of each line to be said
  { with("4", { array_inx = "1-9", num_tasks = 1 }), "--gres=gpu:1 and 4 elements share a GPU" },
  { with("4", { array_inx = "1-9", ntasks_per_node = 1 }), "--gres=gpu:1 and 4 elements share a GPU" },
  { with("4", { array_inx = "1-9" }) },
  { with("4", { array_inx = "1-9", num_tasks = 2 }) },
  { with("1", { array_inx = "1-9", num_tasks = 1 }) },
  { with("4", { array_inx = "1-9", num_tasks = 1, shared = 0 }) },
  { with("4", { array_inx = "1-9", num_tasks = 1, tres_per_node = "gres/gpu:1" }) },
  { with("4", { num_tasks = 1 }) },
  { with("4", { script = torch }), "torchrun" },
  { with("4", { script = torch, tres_per_node = "gres/gpu:1" }), "torchrun" },
  { with("4", { script = torch, num_tasks = 2 }), "torchrun" },
  { with("4", { script = torch, num_tasks = 1 }) },
  { with("4", { script = torch, ntasks_per_node = 1, min_nodes = 2 }) },
  { with("1", { script = torch, tres_per_node = "gres/gpu:1" }) },
  { with("4", { script = torch, tres_per_node = "gres/gpu:1", num_tasks = 1 }) },
  { with("4", { script = "nothing" }) },
  { with("4", { num_tasks = 1, min_nodes = 1, sockets_per_node = 1, cores_per_socket = 1, threads_per_core = 1 }),
    "starts one task in this job, fewer than it has slots: unless you gave -n1, Slurm computed that number from -B;" },
  { with("4", { num_tasks = 4, min_nodes = 2, sockets_per_node = 2, tres_per_node = "gres/gpu:1" }),
    "starts 4 tasks in this job, fewer than it has slots: unless you gave -n4, Slurm computed that number from --sockets" },
  { with("4", { num_tasks = 8, min_nodes = 2, sockets_per_node = 4, tres_per_node = "gres/gpu:1" }) },
  { with("4", { num_tasks = 3, sockets_per_node = 1, tres_per_node = "gres/gpu:1" }) },
  { with("4", { sockets_per_node = 1, tres_per_node = "gres/gpu:1" }) },
  { with("1", { num_tasks = 1, threads_per_core = 1, tres_per_node = "gres/gpu:1" }) },
}
for number, row in ipairs(hints) do
  hush()
  equal("hint, row " .. number, "answer", share.submit(row[1], {}, 2001), slurm.SUCCESS)
  equal("hint, row " .. number, "lines", #lines, #row - 1)
  for i = 2, #row do equal("hint, row " .. number, row[i], has(lines[i - 1], row[i]), true) end
end
for n, wanted in pairs({ ["1"] = false, ["2"] = true }) do
  hush()
  share.submit(with(n, { script = torch }), {}, 2001)
  equal("hint for " .. n, "two ranks on one GPU", has(said, "NCCL refuses"), wanted)
  equal("hint for " .. n, "way out", has(said, 'tasks.md, "Independent tasks"'), true)
end
configure({ mode = "on" })
hush()
share.submit(with("4", { array_inx = "1-9", num_tasks = 1 }), {}, 2001)
equal("no hint at what would be refused", "line", said, nil)
configure(ON)
local scripts = {
  { "#!/bin/bash\nsrun python train.py\n", nil },
  { "", nil },
  { "torchrun", "torchrun" },
  { "srun torchrun_old x", nil },
  { "srun mytorchrun", nil },
  { "srun ./torchrun.sh", "torchrun" },
  { "# torchrun\n  # deepspeed\n#SBATCH -J nccl\nsrun x", nil },
  { "# a\n# b\nsrun deepspeed x", "deepspeed" },
  { "srun x # torchrun", "torchrun" },
  { "python -m torch.distributed.launch x", "torch.distributed" },
  { "srun python -c 'from torch import distributed as d; d.init_process_group()'", "init_process_group" },
  { "accelerate launch x", "accelerate launch" },
  { "accelerate config", nil },
  { "export NCCL_DEBUG=INFO", "NCCL_" },
  { "python x --backend nccl", "nccl" },
  { "export MASTER_ADDR=n1", "MASTER_ADDR" },
  { "echo $MY_MASTER_ADDR", nil },
  { "python -c 'import pytorch_lightning'", "pytorch_lightning" },
  { "python -c 'import lightning as L'", "lightning" },
  { "python enlightning.py", nil },
  { "horovodrun -np 4 x", "horovodrun" },
  { "python -c 'import jax; jax.distributed.initialize()'", "jax.distributed" },
  { string.rep("x", 256 * 1024) .. "\ntorchrun\n", nil },
  { string.rep("#\n", 131000) .. "torchrun", "torchrun" },
}
for _, row in ipairs(scripts) do equal(string.sub(row[1], 1, 60), "framework", share.framework_in(row[1]), row[2]) end

-- modes ---------------------------------------------------------------------------------------------------------------
local both = { gpu = { flag_default = 1 }, plain = { flag_default = 0 } }
local asked = { -- what was asked, a word of what slurmctld would log, and what the nodes are told
  { {}, "whole nodes (admin_comment=share-gpu=4 min_mem_per_node=0 shared=0)", "observe,whole" },
  { { tres_per_node = "gres/gpu:1" }, "4 tasks per node on nodes of one user (", "observe,tasks=4" },
  { { tres_per_job = "gres/gpu:2" }, "the GPUs it names on nodes of one user (", "observe" },
  { { tres_per_node = "gres/gpu:1", num_tasks = 1 }, "a part of a GPU as gres/shard:180180 (", "observe,part" },
  { { tres_per_job = "gres/gpu:1", num_tasks = 1, environment = { SLURM_GPUS = "1" } }, "SLURM_GPUS= ", "observe,part" },
  { { tres_per_node = "gres/gpu:h\n%s:1", num_tasks = 1 }, "gres/shard:h?%s:180180", "observe,part" },
  { { tres_per_node = "gres/shard:1" }, "refuse it: --gres=shard does not go", "observe,refused" },
  { { het_job_offset = 0 }, "refuse it: a heterogeneous job", "observe,refused" },
}
for _, mode in ipairs({ "off", "observe" }) do
  configure({ mode = "on", shards_per_gpu = 720720, partitions = { gpu = mode } })
  for number, row in ipairs(asked) do
    local name = mode .. ", row " .. number
    local d, untouched = with("4", row[1]), with("4", row[1])
    hush()
    equal(name, "answer", share.submit(d, both, 2001), slurm.SUCCESS)
    for key, value in pairs(d) do
      if type(value) ~= "table" and key ~= "extra" then equal(name, key, value, untouched[key]) end
    end
    equal(name, "extra", d.extra, "slurm-share=" .. (mode == "off" and "off" or row[3]))
    for key in pairs(untouched) do equal(name, key .. " is there", d[key] ~= nil, true) end
    equal(name, "SLURM_GPUS", d.environment.SLURM_GPUS, row[1].environment and "1")
    equal(name, "lines", #lines, 1)
    equal(name, "logged", #logged, mode == "off" and 0 or 1)
    equal(name, "errors", #errors, 0)
    if mode == "off" then
      equal(name, "line", said, "slurm-share: --share-gpu=4 has no effect: sharing is switched off in partition gpu; "
        .. "the job runs as if it were not there")
    else
      equal(name, "line", said, "slurm-share: --share-gpu=4 has no effect yet: partition gpu only observes; "
        .. "the job runs as if it were not there")
      equal(name, "log: " .. row[2], has(logged[1], row[2]), true)
      equal(name, "whose job", has(logged[1], "slurm-share: would: for the job of uid 2001 in partition gpu: "), true)
      equal(name, "one line", string.find(logged[1], "[^ -~]"), nil)
    end
  end
  hush() -- doctor's question
  equal(mode .. ", doctor", "answer", share.submit(with("1", { reservation = share.QUESTION, tres_per_node = "gres/gpu:0" }), both, 0),
    slurm.SUCCESS)
  equal(mode .. ", doctor", "told", said ~= nil, true)
  equal(mode .. ", doctor", "logged", #logged, 0)
  hush() -- a value that nobody checked
  equal(mode .. ", a bad value", "answer", share.submit(with("4;\n%s"), both, 2001), slurm.SUCCESS)
  equal(mode .. ", a bad value", "line", has(said, "slurm-share: --share-gpu=4;?%s has no effect"), true)
  equal(mode .. ", a bad value", "logged", #logged, mode == "off" and 0 or 1)
  equal(mode .. ", a bad value", "printable", string.find(said .. (logged[1] or ""), "[^ -~]"), nil)
  hush() -- srun alone, which in mode on needs numbers
  local d = with("4")
  table.insert(d.spank_job_env, share.DIRECT .. "=1")
  equal(mode .. ", srun", "answer", share.submit(d, both, 2001), slurm.SUCCESS)
  hush()
  share.submit(with("off"), both, 2001)
  equal(mode .. ", --share-gpu=off", "lines", #lines + #logged, 0)
end
-- no file: observe; a partition's mode over the site's; of several partitions the mode that does more
local modes = {
  { {}, "gpu", "observe" }, { {}, nil, "observe" },
  { { mode = "on" }, "gpu", "on" }, { { mode = "off" }, nil, "off" },
  { { mode = "on", partitions = { gpu = "off" } }, "gpu", "off" }, { { mode = "on", partitions = { gpu = "off" } }, nil, "off" },
  { { mode = "on", partitions = { gpu = "off" } }, "plain", "on" },
  { { mode = "on", partitions = { gpu = "off" } }, "gpu,plain", "on" },
  { { partitions = { gpu = "off", plain = "observe" } }, "gpu,plain", "observe" },
  { { partitions = { gpu = "off", plain = "on" } }, "plain,gpu", "on" },
}
for number, row in ipairs(modes) do
  local names = share.partitions_of({ partition = row[2] }, both)
  equal("modes, row " .. number, "mode", share.mode_for(names, configure(row[1])), row[3])
end
equal("no default partition", "mode", share.mode_for({}, configure({ mode = "off" })), "off")
configure({ mode = "off" })
hush()
share.submit(with("4"), {}, 2001)
equal("no default partition", "line", has(said, "switched off in this cluster;"), true)
hush()
share.submit(with("4", { partition = "a\27[1m" .. string.rep("b", 200) }), {}, 2001)
equal("a partition nobody has", "printable", string.find(said, "[^ -~]"), nil)
equal("a partition nobody has", "bounded", #said < 300, true)
configure(ON)

-- values from strangers -------------------------------------------------------------------------------------------
for _, value in ipairs({ "4;rm", "0", "61", "99999", "4\n", "", "-1", "1e1", "0x4", "4,sm=50,mps=off", "4,mem=20G:8G" }) do
  said = nil
  local before = with(value)
  equal(value, "answer", share.submit(before, {}, 2001), slurm.ESLURM_INVALID_GRES)
  equal(value, "shared", before.shared, 65534)
  equal(value, "sentence", said ~= nil and string.find(said, share.FORM, 1, true) ~= nil and not string.find(said, "\n"), true)
end
equal("two values", "answer", share.submit(job({ spank_job_env = { "SHARE_GPU=2", "SHARE_GPU=3" } }), {}, 1), slurm.ESLURM_INVALID_GRES)
said = nil
equal("a heterogeneous job", "answer", share.submit(with("4", { het_job_offset = 0 }), {}, 1), slurm.ERROR)
equal("a heterogeneous job", "sentence", said ~= nil and string.find(said, "heterogeneous", 1, true) ~= nil, true)
equal("not heterogeneous", "answer", share.submit(with("4", { het_job_offset = slurm.NO_VAL }), {}, 1), slurm.SUCCESS)
equal("heterogeneous, no share", "answer", share.submit(job({ het_job_offset = 1 }), {}, 1), slurm.SUCCESS)
equal("nothing to read", "answer", share.submit(job({ spank_job_env = nil }), nil, 1), slurm.SUCCESS)

-- what cannot be ------------------------------------------------------------------------------------------------------
equal("--gres=shard", "answer", share.submit(with("4", { tres_per_node = "gres/shard:2" }), {}, 1), slurm.ERROR)
equal("--gres=shard alone", "answer", share.submit(job({ tres_per_node = "gres/shard:2" }), {}, 1), slurm.SUCCESS)
said = nil
d = with("4,mem=8192M", { ntasks_per_tres = 4, num_tasks = 4 })
equal("--ntasks-per-gpu", "answer", share.submit(d, {}, 1), slurm.ERROR)
equal("--ntasks-per-gpu", "sentence", has(said, "--share-gpu=4,mem=8192M --gres=gpu:1 job.sh"), true)
local bash = "#!/bin/bash\n"
for number, row in ipairs({ -- what was asked, and whether it is no GPU
  { { spank_job_env = { "SHARE_GPU=4", "SHARE_GPU_NONE=1" } }, true },
  { { spank_job_env = { "SHARE_GPU=4", "SHARE_GPU_NONE=1" }, tres_per_job = "gres/gpu:2" }, false },
  { { script = bash .. "#SBATCH --gres=none\nsrun true\n" }, true },
  { { script = bash .. "#SBATCH -N1 --gres NONE # all\n" }, true },
  { { script = bash .. "\n# text\n#SBATCH --gpus-per-task=0\n" }, true },
  { { script = bash .. "#SBATCH --gres=none\n", tres_per_node = "gres/gpu:1" }, false },
  { { script = bash .. "#SBATCH --gres=none\n#SBATCH --gres=\n" }, true },
  { { script = bash .. "#SBATCH --gres=none\n#SBATCH --gres=license:1\n" }, false },
  { { script = bash .. "#SBATCH --gres= --share-gpu=2\n" }, true },
  { { script = bash .. '#SBATCH --gpus-per-node=""\n' }, true },
  { { script = bash .. "#SBATCH --gpus=2\n" }, false },
  { { script = bash .. "#SBATCH --gpus=\n", tres_per_job = "gres/gpu:2" }, false },
  { { script = bash .. "srun true\n#SBATCH --gres=none\n" }, false },
  { { script = bash .. "##SBATCH --gres=none\n" }, false },
  { { tres_per_node = "gres/gpu:none" }, true },
  { { tres_per_job = "gres/gpu:none:1" }, true },
  { { tres_per_node = "gres/gpu:2", tres_per_task = "gres/gpu:0" }, true },
}) do
  said = nil
  row[1].spank_job_env = row[1].spank_job_env or { "SHARE_GPU=4" }
  equal("no GPU, row " .. number, "answer", share.submit(job(row[1]), {}, 1), row[2] and slurm.ERROR or slurm.SUCCESS)
  equal("no GPU, row " .. number, "sentence", has(said, "with no GPU shares nothing"), row[2])
end
for _, tres in ipairs({ "gres/gpu:2", "gres/gpu=2", "gres:gpu:2", "gres/gpu:h200:2", "cpu=4,gres/gpu:2" }) do
  said = nil
  d = with("4,mem=8192M", { tres_per_task = tres, num_tasks = 1 })
  equal("--gpus-per-task=2, " .. tres, "answer", share.submit(d, {}, 1), slurm.ERROR)
  equal("--gpus-per-task=2, " .. tres, "sentence", has(said, "2 GPUs for each task (--gpus-per-task) do not go with"), true)
  equal("--gpus-per-task=2, " .. tres, "line", has(said, "sbatch --share-gpu=4,mem=8192M --gres=gpu:2 job.sh"), true)
end
equal("--gpus-per-task=2 alone", "answer", share.submit(job({ tres_per_task = "gres/gpu:2" }), {}, 1), slurm.SUCCESS)
equal("--ntasks-per-gpu alone", "answer", share.submit(job({ ntasks_per_tres = 4 }), {}, 1), slurm.SUCCESS)
local direct = { -- srun without an allocation: what was asked, and the line that works; nil: it works as it is
  { {}, "srun --share-gpu=4 --gres=gpu:1 -n4 PROGRAM" },
  { { num_tasks = 8 }, "srun --share-gpu=4 --gres=gpu:2 -n8 PROGRAM" },
  { { num_tasks = 1, min_nodes = 1 }, "srun --share-gpu=4 --gres=gpu:1 -n1 PROGRAM" },
  { { num_tasks = 16, min_nodes = 2 }, "srun --share-gpu=4 -N2 --gres=gpu:2 --ntasks-per-node=8 PROGRAM" },
  { { tres_per_node = "gres/gpu:2", min_nodes = 1 }, "srun --share-gpu=4 --gres=gpu:2 -n8 PROGRAM" },
  { { tres_per_node = "gres/gpu:1", min_nodes = 2 }, "srun --share-gpu=4 -N2 --gres=gpu:1 --ntasks-per-node=4 PROGRAM" },
  { { tres_per_job = "gres/gpu:2" }, "srun --share-gpu=4 --gpus=2 -n8 PROGRAM" },
  { { tres_per_job = "gres/gpu:h200:3,license/x:7" }, "srun --share-gpu=4 --gpus=3 -n12 PROGRAM" },
  { { tres_per_task = "gres/gpu=1" }, "srun --share-gpu=4 --gres=gpu:1 -n4 PROGRAM" },
  { { tres_per_task = "gres/gpu=2", num_tasks = 1 }, "srun --share-gpu=4 --gres=gpu:1 -n1 PROGRAM" },
  { { tres_per_node = "gres/gpu:2", num_tasks = 8 }, nil },
  { { tres_per_node = "gres/gpu:2", ntasks_per_node = 8, num_tasks = 8 }, nil },
  { { tres_per_job = "gres/gpu:2", num_tasks = 3 }, nil },
  { { tres_per_task = "gres/gpu=1", num_tasks = 2 }, nil },
}
for number, row in ipairs(direct) do
  local asked, line = row[1], row[2]
  local d = with("4", asked)
  table.insert(d.spank_job_env, share.DIRECT .. "=1")
  said = nil
  local name = "direct srun, row " .. number
  equal(name, "answer", share.submit(d, {}, 2001), line and slurm.ERROR or slurm.SUCCESS)
  equal(name, "line", said and string.match(said, "for example (.*)$"), line)
end
equal("srun without a share", "answer", share.submit(job({ spank_job_env = { share.DIRECT .. "=1" } }), {}, 1), slurm.SUCCESS)

-- an environment with which slurmd could start no hook: in every mode, with a share and without ------------------------
local function environment(bytes, count) -- as the kernel counts it: "SPANK_", a NUL and a pointer for each variable
  local found, each = {}, math.floor(bytes / count)
  for number = 1, count do
    local length = (number == 1 and bytes - (count - 1) * each or each) - 15
    found[number] = string.sub(string.format("E%d=", number) .. string.rep("x", length), 1, length)
  end
  return found
end
for _, mode in ipairs({ "on", "observe", "off" }) do
  configure({ mode = mode, shards_per_gpu = 720720 })
  for _, count in ipairs({ 1, 2, 2800 }) do -- one long value; many short variables
    for more = 0, 1 do
      local name = mode .. ", " .. count .. " variables, " .. more .. " byte more"
      hush()
      local d = job({ spank_job_env = environment(65536 + more, count) })
      equal(name, "answer", share.submit(d, {}, 2001), more == 0 and slurm.SUCCESS or slurm.ERROR)
      equal(name, "sentence", said ~= nil and has(said, "brings 65537 bytes") and has(said, "at most 65536"), more == 1)
      equal(name, "slurmctld's log", has(logged[1], "refused a job of uid 2001"), more == 1)
    end
  end
  local d = with("4")
  d.spank_job_env[3] = string.rep("x", 2 ^ 21)
  equal(mode .. ", a share", "answer", share.submit(d, {}, 2001), slurm.ERROR)
  equal(mode .. ", a share", "shared", d.shared, 65534)
end
configure(ON)

-- which jobs have their nodes to themselves -------------------------------------------------------------------------
local partitions = { gpu = { flag_default = 1 }, plain = { flag_default = 0 } }
local exclusive = {
  { { mode = "on" }, "gpu", 65534 },
  { { mode = "on", exclusive_user_partitions = { "gpu" } }, "gpu", 2 },
  { { mode = "on", exclusive_user_partitions = { "gpu" } }, nil, 2 },
  { { mode = "on", exclusive_user_partitions = { "gpu" } }, "plain", 65534 },
  { { mode = "on", exclusive_user_partitions = { "gpu" } }, "plain,gpu", 2 },
  { { mode = "on", exclusive_user_partitions = { "plain" } }, nil, 65534 },
  { { mode = "on", exclusive_user_partitions = { "gpu" }, partitions = { gpu = "off" } }, "gpu", 65534, 0 },
  { { mode = "on", exclusive_user_partitions = { "gpu" }, partitions = { gpu = "observe" } }, "gpu", 65534, 1 },
  { { mode = "on", exclusive_user_partitions = { "gpu" }, partitions = { gpu = "observe" } }, "gpu,plain", 65534, 1 },
  { { mode = "on", exclusive_user_partitions = { "gpu", "plain" }, partitions = { gpu = "observe" } }, "gpu,plain", 2 },
  { { mode = "on", exclusive_user_partitions = { "gpu", "plain" }, partitions = { gpu = "off" } }, "gpu", 65534 },
}
for number, row in ipairs(exclusive) do
  local partition, wanted = row[2], row[3]
  configure(row[1])
  hush()
  local name = "exclusive, row " .. number
  local plain = job({ partition = partition })
  share.submit(plain, partitions, 2001)
  equal(name, "shared", plain.shared, wanted)
  equal(name, "logged", #logged, row[4] or 0)
  equal(name, "to the user", #lines, 0)
  local whole = job({ partition = partition, shared = 0 })
  share.submit(whole, partitions, 2001)
  equal(name, "shared of --exclusive", whole.shared, 0)
end
hush()
configure({ exclusive_user_partitions = { "gpu" } })
share.submit(job({ partition = "gpu" }), partitions, 1)
equal("observe by default", "log", logged[1], "slurm-share: would: for the job of uid 2001 in partition gpu: nodes of one user "
  .. "(shared=2), as exclusive_user_partitions says")

-- settings that are missing, damaged, unreadable or not of this config.toml: off, one line in the log, ordinary jobs as ever
local KEEPS = { mode = "on", exclusive_user_partitions = { "gpu" }, exclusive_user_nodes = { "n1" }, partitions = { gpu = "on" } }
local path, settings_path = share.CONFIG, share.SETTINGS
local outdated = {
  { "a changed config.toml", function() write(path, "mode = 'on'\n") end, path .. " is not what " .. settings_path, keeps = true },
  { "a config.toml that is gone", function() os.remove(path) end, path .. " is not what " .. settings_path, keeps = true },
  { "an unreadable config.toml", function() share.CONFIG = "/proc/self/mem" end, "/proc/self/mem cannot be read", keeps = true },
  { "no settings", function() os.remove(settings_path) end, settings_path .. " is missing" },
  { "unreadable settings", function() share.SETTINGS = "/proc/self/mem" end, "/proc/self/mem cannot be read" },
  { "torn settings", function() write(settings_path, "return { mode = ") end, settings_path .. " cannot be understood" },
  { "bytes", function() write(settings_path, string.dump(function() return {} end)) end, "cannot be understood" },
  { "settings that call", function() write(settings_path, "os.exit(3)") end, "cannot be understood" },
  { "no table", function() write(settings_path, "return 'mode'") end, "cannot be understood" },
  { "settings of another release", function() write(settings_path, "return { mode = 'on' }") end, "cannot be understood" },
  { "an unknown mode", function() configure({ mode = "maybe" }) end, "cannot be understood" },
  { "an unknown mode of a partition", function() configure({ partitions = { gpu = "maybe" } }) end, "cannot be understood" },
  { "an unknown field", function() configure({ verdict_field = "admin_comment" }) end, "cannot be understood" },
}
for _, row in ipairs(outdated) do
  local name, damage, why = row[1], row[2], row[3]
  configure(KEEPS)
  share.submit(job({ partition = "gpu" }), both, 1)
  hush()
  damage()
  for _ = 1, 3 do
    local ordinary, shared = job({ partition = "gpu" }), with("4", { partition = "gpu" })
    equal(name, "an ordinary job", share.submit(ordinary, both, 1), slurm.SUCCESS)
    equal(name, "its nodes", ordinary.shared, 65534)
    equal(name, "its verdict", ordinary.extra, row.keeps and "slurm-share=off" or nil)
    equal(name, "a share", share.submit(shared, both, 1), slurm.SUCCESS)
    equal(name, "its verdict", shared.extra, "slurm-share=off")
    equal(name, "its nodes", shared.shared, 65534)
  end
  equal(name, "log", #errors == 1 and has(errors[1], why), true)
  equal(name, "log, way out", has(errors[1], "run `slurm-share config write-lua` on this host"), true)
  equal(name, "line", said, "slurm-share: --share-gpu=4 has no effect: sharing is switched off in partition gpu until an "
    .. "administrator runs `slurm-share config write-lua` on the controller; the job runs as if it were not there")
  share.CONFIG, share.SETTINGS = path, settings_path
  configure(KEEPS)
  local again = with("4", { partition = "gpu" })
  share.submit(again, both, 1)
  equal(name, "put right", again.extra, "slurm-share=on,share-gpu=4")
end
os.remove(path)
os.remove(settings_path)
hush()
local gone = job({ partition = "gpu" })
share.submit(gone, partitions, 1)
equal("neither file", "shared", gone.shared, 65534)
equal("neither file", "log", #errors, 0)
share.submit(with("4", { partition = "gpu" }), partitions, 1)
equal("neither file", "line", has(said, "only observes"), true)

equal("a site's own script", "slurm_job_submit", slurm_job_submit, share.submit)
equal("a site's own script", "slurm_job_modify", slurm_job_modify({}, {}, {}, 1), slurm.SUCCESS)

-- what scontrol update may change of a job with a share
local function update(changed, old, uid)
  local job = { num_tasks = slurm.NO_VAL, ntasks_per_node = slurm.NO_VAL16, shared = slurm.NO_VAL16 }
  for field, value in pairs(changed) do job[field] = value end
  return share.modify(job, { partition = "gpu", admin_comment = old or "site;share-gpu=4,mem=8192M" }, {}, uid or 2001)
end
for _, changed in ipairs({ { partition = "plain" }, { num_tasks = 4 }, { ntasks_per_node = 2 }, { tres_per_node = "gres/shard:1" },
                           { tres_per_job = "gres/gpu:2" }, { tres_per_task = "" }, { shared = 1 } }) do
  local name = "update of " .. next(changed)
  equal(name, "a share", update(changed), slurm.ERROR)
  equal(name, "way out", string.match(lines[#lines], "submit it again$"), "submit it again")
  equal(name, "by root", update(changed, nil, 0), slurm.SUCCESS)
  equal(name, "no share", update(changed, "noshare-gpu=4"), slurm.SUCCESS)
  equal(name, "no comment", update(changed, ""), slurm.SUCCESS)
end
-- where another tool's script has overwritten admin_comment
for field in pairs(share.FIELDS) do
  local job = { num_tasks = 4, ntasks_per_node = slurm.NO_VAL16, shared = slurm.NO_VAL16 }
  local old = { partition = "gpu", admin_comment = "JS1:H4s", [field] = "mine;slurm-share=on,share-gpu=4" }
  equal("the share in " .. field, "a share", share.modify(job, old, {}, 2001), slurm.ERROR)
  old[field] = "share-gpu=4"
  equal("a user's own text in " .. field, "a share", share.modify(job, old, {}, 2001), slurm.SUCCESS)
end
equal("update of the time limit", "a share", update({ time_limit = 10 }), slurm.SUCCESS)
equal("update of the partition to itself", "a share", update({ partition = "gpu" }), slurm.SUCCESS)

-- the verdict ----------------------------------------------------------------------------------------------------------
local verdicts = {
  -- the configuration, share, extra, comment: what becomes of extra and comment; "refused": the submission
  { { mode = "on" }, "4", nil, nil, "slurm-share=on,share-gpu=4", nil },
  { { mode = "on" }, "4,mem=8192M", "mine", nil, "mine;slurm-share=on,share-gpu=4,mem=8192M", nil },
  { { mode = "on" }, "4", "mine;too", "c", "mine;too;slurm-share=on,share-gpu=4", "c" },
  { { mode = "on" }, "4", '{"a":";"}', nil, '{"a":";"};slurm-share=on,share-gpu=4', nil },
  { { mode = "off" }, "4", "mine", nil, "mine;slurm-share=off", nil },
  { { mode = "on", verdict_field = "comment" }, "4", "x=1", "mine", "x=1", "mine;slurm-share=on,share-gpu=4" },
  -- a user's own
  { { mode = "off" }, "4", "slurm-share=on", "slurm-share=on", "slurm-share=off", "" },
  { { mode = "on" }, "4", "a;slurm-share=off;b;slurm-share=on,share-gpu=9", nil, "a;b;slurm-share=on,share-gpu=4", nil },
  { { mode = "on" }, nil, "slurm-share=off", "slurm-share=off;b", "", "b" },
  { { mode = "on" }, "4", "a slurm-share=off", nil, "a slurm-share=off;slurm-share=on,share-gpu=4", nil },
  -- ordinary jobs, where the hooks look at them
  { { mode = "off" }, nil, "mine", nil, "mine", nil },
  { { mode = "off", exclusive_user_nodes = { "n1" } }, nil, "mine", nil, "mine;slurm-share=off", nil },
  { { mode = "off", exclusive_user_partitions = { "x" } }, nil, nil, nil, "slurm-share=off", nil },
  { { mode = "on", exclusive_user_nodes = { "n1" } }, nil, "mine", nil, "mine", nil },
  { { mode = "observe", exclusive_user_nodes = { "n1" } }, nil, "mine", nil, "mine", nil },
  -- Slurm takes 1024 bytes, and each verdict that follows must have room, up to slurm-share=on,runs=999999,share-gpu=4
  { { mode = "on" }, "4", string.rep("x", 985), nil, string.rep("x", 985) .. ";slurm-share=on,share-gpu=4", nil },
  { { mode = "on" }, "4", string.rep("x", 986), nil, "refused" },
  { { mode = "off" }, "4", string.rep("x", 997), nil, string.rep("x", 997) .. ";slurm-share=off", nil },
  { { mode = "off" }, "4", string.rep("x", 1024), nil, "refused" },
  { { mode = "on" }, nil, string.rep("x", 1024), nil, string.rep("x", 1024), nil },
  -- an ordinary job is not refused for it; slurmctld's log has a line
  { { mode = "off", exclusive_user_nodes = { "n1" } }, nil, string.rep("x", 997), nil, string.rep("x", 997) .. ";slurm-share=off", nil },
  { { mode = "off", exclusive_user_nodes = { "n1" } }, nil, string.rep("x", 998), nil, string.rep("x", 998), nil, 1 },
  { { mode = "off", exclusive_user_partitions = { "x" } }, nil, string.rep("x", 1024), nil, string.rep("x", 1024), nil, 1 },
}
for number, row in ipairs(verdicts) do
  local settings, n, extra, comment, extra_wanted, comment_wanted, in_log = unpack(row, 1, 7)
  local name, d = "verdict " .. number, n and with(n) or job({})
  configure(settings)
  d.partition, d.extra, d.comment = "gpu", extra, comment
  hush()
  local answer = share.submit(d, both, 2001)
  equal(name, "answer", answer, extra_wanted == "refused" and slurm.ERROR or slurm.SUCCESS)
  if extra_wanted == "refused" then
    equal(name, "why", has(said, "Slurm takes 1024"), true)
  else
    equal(name, "extra", d.extra, extra_wanted)
    equal(name, "comment", d.comment, comment_wanted)
    equal(name, "log", in_log == nil or (#logged == in_log and has(logged[1], "no room in its extra for slurm-share=off")), true)
  end
end

share.controllers_uid = function() return 64030 end
local RUNNING, REQUEUED = 1, 0 + 32768
local changes = { -- of, to, by whom, the job's state: the new text; "refused"
  { "mine;slurm-share=on", "yours", 2001, 0, "yours;slurm-share=on" },
  { "mine;slurm-share=on", "", 2001, 0, "slurm-share=on" },
  { "mine;slurm-share=on", "yours;slurm-share=on", 2001, 0, "yours;slurm-share=on" },
  { "mine;slurm-share=on", "yours;slurm-share=on", 2001, RUNNING, "yours;slurm-share=on" },
  { "slurm-share=off", "slurm-share=on", 2001, 0, "refused" },
  { "slurm-share=on", "slurm-share=off", 2001, 0, "refused" },
  { "slurm-share=on", "slurm-share=on;slurm-share=off", 2001, 0, "refused" },
  { nil, "slurm-share=off", 2001, 0, "refused" },
  { nil, "yours", 2001, 0, "yours" },
  { "slurm-share=on", "yours", 2001, RUNNING, "yours;slurm-share=on" },
  { "slurm-share=on", "slurm-share=off", 0, 0, "slurm-share=off" },
  { "slurm-share=on", "slurm-share=off", 64030, 0, "slurm-share=off" },
  { "slurm-share=on", "slurm-share=off", 64030, REQUEUED, "slurm-share=off" },
  { "slurm-share=on", "yours", 0, 0, "yours;slurm-share=on" },
  { "slurm-share=on", "slurm-share=off", 0, RUNNING, "refused" },
  { "slurm-share=on", "slurm-share=off", 64030, RUNNING, "refused" },
  { "slurm-share=on", "slurm-share=on,runs=1", 0, RUNNING, "slurm-share=on,runs=1" },
  { "slurm-share=on", "slurm-share=on,runs=1", 2001, RUNNING, "refused" },
  { "slurm-share=on,runs=1", "slurm-share=on", 0, RUNNING, "slurm-share=on" },
  { "slurm-share=off", "slurm-share=on,runs=1", 0, RUNNING, "refused" },
  { "mine;slurm-share=on", string.rep("x", 997), 2001, 0, string.rep("x", 997) .. ";slurm-share=on" },
  { "mine;slurm-share=on", string.rep("x", 998), 2001, 0, "refused" },
  { "mine;slurm-share=on", string.rep("x", 998) .. ";slurm-share=on", 2001, 0, "refused" },
  { "mine;slurm-share=on", string.rep("x", 998) .. ";slurm-share=on", 2001, RUNNING, "refused" },
  -- the share in it
  { "slurm-share=on,share-gpu=4", "yours", 2001, RUNNING, "yours;slurm-share=on,share-gpu=4" },
  { "slurm-share=on,share-gpu=4", "slurm-share=on,share-gpu=9", 2001, 0, "refused" },
  { "slurm-share=on,share-gpu=4", "slurm-share=on,runs=1,share-gpu=4", 0, RUNNING, "slurm-share=on,runs=1,share-gpu=4" },
  { "slurm-share=on,share-gpu=4", string.rep("x", 985), 2001, 0, string.rep("x", 985) .. ";slurm-share=on,share-gpu=4" },
  { "slurm-share=on,share-gpu=4", string.rep("x", 986), 2001, 0, "refused" },
}
for number, row in ipairs(changes) do
  for field in pairs(share.FIELDS) do
    local was, now, uid, state, wanted = unpack(row, 1, 5)
    local name = "change " .. number .. " of " .. field
    local d = { [field] = now, num_tasks = slurm.NO_VAL, ntasks_per_node = slurm.NO_VAL16, shared = slurm.NO_VAL16 }
    hush()
    local answer = share.modify(d, { [field] = was, job_state = state }, {}, uid)
    equal(name, "answer", answer, wanted == "refused" and slurm.ERROR or slurm.SUCCESS)
    if wanted == "refused" then
      equal(name, "lines", #lines, 1)
    else
      equal(name, "text", d[field], wanted)
    end
  end
end
-- scripts that ask for a share, and no option has come ------------------------------------------------------------------
local bash = "#!/bin/bash\n"
local unread = { -- the script, what it asks for: nil: nothing
  { bash .. "#SBATCH --share-gpu=2\nsrun true\n", "2" },
  { bash .. "#SBATCH --share-gpu 2,mem=8G # all\n", "2,mem=8G" },
  { bash .. "#SBATCH -N1 --share-gpu='2' --gres=gpu:1\n", "2" },
  { bash .. "#SBATCH \"--share-gpu=2\"\n", "2" },
  { bash .. "#SBATCH --share\\-gpu=2 --share-gpu=3\n", "3" },
  { bash .. "#SBATCH--sh=2\n", "2" },
  { bash .. "#SLURM --share-gpu=2\n", "2" }, -- sbatch reads it, and warns
  { bash .. "\n# a remark\n  # another\n#SBATCH --share-gpu=2", "2" },
  { bash .. "#SBATCH -n2\n#SBATCH hetjob\n#SBATCH --share-gpu=2\n", "2" },
  { bash .. "#SBATCH --share-gpu=2\n#SBATCH --share-gpu=off\n", nil },
  { bash .. "#SBATCH --share-gpu=0\n", nil },
  { bash .. "#SBATCH --share-gpu=many\n", "many" },
  { bash .. "#SBATCH --share-gpu\n", "" },
  { bash .. "srun true\n#SBATCH --share-gpu=2\n", nil },
  { bash .. "cat <<END\n#SBATCH --share-gpu=2\nEND\n", nil },
  { bash .. "# #SBATCH --share-gpu=2\n", nil },
  { bash .. " #SBATCH --share-gpu=2\n", nil },
  { bash .. "##SBATCH --share-gpu=2\n", nil },
  { bash .. "#SBATCH -J x # --share-gpu=2\n", nil },
  { bash .. "#SBATCH --comment='with --share-gpu=2'\n", nil },
  { bash .. "#SBATCH --comment '--share-gpu=2' -J --share-gpu=4\n", nil },
  { bash .. "#SBATCH --comment x --share-gpu=2\n", "2" },
  { bash .. "#SBATCH --slot-wait=5m --share-gpus=2 --s=2\n", nil },
  { bash .. "echo sbatch --share-gpu=2\n", nil },
  { bash .. "#SBATCH --comment='open --share-gpu=2\n", nil },
  { bash .. "#SBATCH --share-gpu=2\\", "2" },
  { "#!/bin/sh\n#SCRON --share-gpu=2\n", nil },
}
for number, row in ipairs(unread) do
  local script, asked = row[1], row[2]
  for _, mode in ipairs({ "on", "observe", "off" }) do
    local name = "script " .. number .. " in mode " .. mode
    configure({ mode = mode, shards_per_gpu = 720720 })
    hush()
    local d = job({ script = script })
    local answer = share.submit(d, {}, 2001)
    equal(name, "asks", share.asked_in_script(script), asked)
    equal(name, "answer", answer, asked and mode == "on" and slurm.ESLURM_INVALID_GRES or slurm.SUCCESS)
    equal(name, "lines", #lines, asked and mode == "on" and 1 or 0)
    equal(name, "log", #logged, asked and mode ~= "off" and 1 or 0)
    equal(name, "exclusive", d.shared, 65534)
    equal(name, "verdict", d.extra, nil)
  end
end
configure(ON)
local asking = bash .. "#SBATCH --share-gpu=2\nsrun true\n"
local declined = { -- of whom it is known that no share is wanted, or that there is one
  { spank_job_env = { "SHARE_GPU_OFF=1" } }, { spank_job_env = { "SHARE_GPU=off" } }, { spank_job_env = { "SHARE_GPU=4" } },
}
for number, asked in ipairs(declined) do
  asked.script = asking
  equal("declined " .. number, "answer", share.submit(job(asked), {}, 2001), slurm.SUCCESS)
end
local told = { -- the job, what the sentence has
  { { script = asking }, '"spank_environment": ["SHARE_GPU=2"]' },
  { { script = bash .. "#SBATCH --share-gpu=many\n" }, '["SHARE_GPU=4"]' },
  { { script = asking, spank_job_env = { "OTHER=1" } }, "delete the line" },
  { { script = asking, het_job_offset = 0 }, "a job of its own" },
  { { script = asking .. "# This script was created by sbatch --wrap.\n" }, "sbatch --share-gpu=2 --wrap=COMMAND" },
  { { script = "#!/bin/sh\n#SCRON -n1 --share-gpu=2\nsrun true\n", cron_job = true }, "let the entry submit that script" },
}
for number, row in ipairs(told) do
  hush()
  equal("told " .. number, "answer", share.submit(job(row[1]), {}, 2001), slurm.ESLURM_INVALID_GRES)
  equal("told " .. number, "lines", #lines, 1)
  equal("told " .. number, said or "nothing", has(said, row[2]), true)
  equal("told " .. number, "log", has(logged[1], "refused a job of uid 2001: "), true)
end
for _, name in ipairs({ "SPANK_SHARE_GPU", "SLURM_SPANK_SHARE_GPU", "SLURM_SHARE_GPU" }) do
  hush()
  equal(name, "answer", share.submit(job({ spank_job_env = { name .. "=2" } }), {}, 2001), slurm.ESLURM_INVALID_GRES)
  equal(name, said or "nothing", has(said, "write SHARE_GPU=2, as Slurm adds"), true)
end
equal("another plugin's variable", "answer", share.submit(job({ spank_job_env = { "MY_SHARE_GPU=2" } }), {}, 2001), slurm.SUCCESS)

-- partitions that give whole nodes, or limit the memory of a job ----------------------------------------------------------
local places = { excl = { max_share = 0 }, gpu = { max_share = 1, max_mem_per_node = 0 }, small = { max_share = 1, max_mem_per_node = 3000 } }
local placed = { -- the job, its partitions, the answer, and what the user is told
  { with("4", { tres_per_node = "gres/gpu:1", num_tasks = 1 }), "excl", slurm.ERROR, "leave -n1 away to have all GPUs of a node" },
  { with("4", { tres_per_node = "gres/gpu:1", num_tasks = 1 }), "excl,gpu", slurm.SUCCESS },
  { with("4", { tres_per_node = "gres/gpu:1", num_tasks = 1 }), "gpu", slurm.SUCCESS },
  { with("4", { tres_per_node = "gres/gpu:1", num_tasks = 1 }), "gone", slurm.SUCCESS },
  { with("4", { tres_per_node = "gres/gpu:1" }), "excl", slurm.SUCCESS, "gets all GPUs of its node, not 1, with 4 slots on each" },
  { with("4", { tres_per_node = "gres/gpu:1" }), "gpu,excl", slurm.SUCCESS },
  { with("4"), "excl", slurm.SUCCESS },
  { with("4"), "gpu,small", slurm.SUCCESS, "allows 3000 MiB on a node (MaxMemPerNode): if Slurm refuses it, write --mem=3000" },
  { with("4"), "gpu", slurm.SUCCESS },
  { with("4", { min_mem_per_node = 1000 }), "small", slurm.SUCCESS },
  { with("4", { tres_per_node = "gres/gpu:1" }), "small", slurm.SUCCESS },
  { job({ num_tasks = 1, tres_per_node = "gres/shard:9" }), "excl", slurm.SUCCESS },
}
for number, row in ipairs(placed) do
  local d, names, answer, words = unpack(row, 1, 4)
  d.partition = names
  hush()
  equal("place " .. number, "answer", share.submit(d, places, 2001), answer)
  equal("place " .. number, "lines", #lines, words and 1 or 0)
  equal("place " .. number, said or "nothing", words == nil or has(said, words), true)
end

equal("update of the time limit", "by SlurmUser", update({ num_tasks = 4 }, nil, 64030), slurm.SUCCESS)
os.exit(failures == 0 and 0 or 1)
