-- lua5.1 job_submit_test.lua SCRIPT: prints each row that does not hold; exit code 1 if there was one.
slurm = { NO_VAL = 4294967294, NO_VAL16 = 65534, SUCCESS = 0, ERROR = -1 }
local said
function slurm.log_user(form, ...) said = string.format(form, ...) end
function slurm.log_error(form, ...) said = string.format(form, ...) end
local share = dofile(arg[1])

local failures = 0
local function equal(row, what, found, wanted)
  if found ~= wanted then
    failures = failures + 1
    print(string.format("%s: %s is %s, not %s", row, what, tostring(found), tostring(wanted)))
  end
end

-- a job as sbatch describes it where nothing was asked
local function job(asked)
  local d = { shared = 65534, num_tasks = slurm.NO_VAL, ntasks_per_node = slurm.NO_VAL16, cpus_per_task = slurm.NO_VAL16,
              ntasks_per_tres = slurm.NO_VAL16, min_cpus = 1, min_nodes = slurm.NO_VAL }
  for key, value in pairs(asked) do d[key] = value end
  return d
end
local function with(n, asked)
  asked = asked or {}
  asked.spank_job_env = { "OTHER=1", "SHARE_GPU=" .. n }
  return job(asked)
end
local config = os.tmpname()
local function configure(text)
  local file = assert(io.open(config, "w"))
  file:write(text)
  file:close()
  share.CONFIG = config
end
-- the file is looked at once in a second: let the clock run
local second = 0
os.time = function() second = second + 1; return second end

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
  { "--gpus -n", with("4", { tres_per_job = "gres/gpu:2", num_tasks = 2 }), { shared = 2, min_cpus = 1 } },
  { "--gpus -c", with("4", { tres_per_job = "gres/gpu:2", cpus_per_task = 2 }), { shared = 2 } },
  { "--gpus --cpus-per-gpu", with("4", { tres_per_job = "gres/gpu:2", cpus_per_tres = "gres/gpu:1" }),
    { cpus_per_tres = "gres/gpu:1" } },
  { "--gpus-per-task", with("4", { tres_per_task = "gres/gpu=1", num_tasks = 2 }), { shared = 2, min_cpus = 1 } },
  { "-c alone is no GPU", with("4", { tres_per_task = "cpu=2" }), { shared = 0 } },
}
local untouched = { "min_mem_per_node", "cpus_per_tres" }
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
local d = with("4", { min_mem_per_cpu = 100 })
share.submit(d, {}, 2001)
equal("--mem-per-cpu", "min_mem_per_node", d.min_mem_per_node, nil)

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

-- values from strangers -------------------------------------------------------------------------------------------
for _, value in ipairs({ "4;rm", "0", "61", "99999", "4\n", "", "-1", "1e1", "0x4", "4,mem=8G,mps=off" }) do
  said = nil
  local before = with(value)
  equal(value, "answer", share.submit(before, {}, 2001), slurm.ERROR)
  equal(value, "shared", before.shared, 65534)
  equal(value, "sentence", said ~= nil and string.find(said, share.FORM, 1, true) ~= nil and not string.find(said, "\n"), true)
end
equal("two values", "answer", share.submit(job({ spank_job_env = { "SHARE_GPU=2", "SHARE_GPU=3" } }), {}, 1), slurm.ERROR)
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
equal("--ntasks-per-gpu", "answer", share.submit(with("4,mem=8192M", { ntasks_per_tres = 4, num_tasks = 4 }), {}, 1), slurm.ERROR)
equal("--ntasks-per-gpu", "sentence", said ~= nil and string.find(said, "--share-gpu=4,mem=8192M --gres=gpu:1 job.sh", 1, true) ~= nil,
  true)
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

-- which jobs have their nodes to themselves -------------------------------------------------------------------------
local partitions = { gpu = { flag_default = 1 }, plain = { flag_default = 0 } }
local texts = {
  { "", "gpu", 65534 },
  { 'exclusive_user_partitions = ["gpu"]', "gpu", 2 },
  { 'exclusive_user_partitions = ["gpu"]', nil, 2 },
  { 'exclusive_user_partitions = ["gpu"]', "plain", 65534 },
  { 'exclusive_user_partitions = ["gpu"]', "plain,gpu", 2 },
  { 'exclusive_user_partitions = ["plain"]', nil, 65534 },
}
for _, row in ipairs(texts) do
  local text, partition, wanted = row[1], row[2], row[3]
  configure(text)
  local name = text .. " / " .. tostring(partition)
  local plain = job({ partition = partition })
  share.submit(plain, partitions, 2001)
  equal(name, "shared", plain.shared, wanted)
  local whole = job({ partition = partition, shared = 0 })
  share.submit(whole, partitions, 2001)
  equal(name, "shared of --exclusive", whole.shared, 0)
end
configure('exclusive_user_partitions = ["gpu"]')
share.submit(job({ partition = "gpu" }), partitions, 1)
configure("exclusive_user_partitions = [")
said = nil
local kept = job({ partition = "gpu" })
share.submit(kept, partitions, 1)
equal("a damaged file", "shared", kept.shared, 2)
equal("a damaged file", "log", said ~= nil and string.find(said, config, 1, true) ~= nil, true)
os.remove(config)
local gone = job({ partition = "gpu" })
share.submit(gone, partitions, 1)
equal("no file", "shared", gone.shared, 65534)

-- the configuration's text -----------------------------------------------------------------------------------------
local function list(text)
  local found = share.exclusive_user_partitions(text)
  return found and table.concat(found, "|") or "nil"
end
local documents = {
  { "", "" },
  { "# nothing\n\n", "" },
  { 'exclusive_user_partitions = []', "" },
  { 'exclusive_user_partitions = ["gpu", "debug"]\n', "gpu|debug" },
  { "exclusive_user_partitions=['gpu','debug',]", "gpu|debug" },
  { '"exclusive_user_partitions" = ["gpu"]', "gpu" },
  { "exclusive_user_partitions = [ # why\n  \"gpu\", # one\n\n  'de#bug' # two\n]\r\n", "gpu|de#bug" },
  { 'other = "exclusive_user_partitions = [1]"\nexclusive_user_partitions = ["gpu"]', "gpu" },
  { 'a = [["x", "]"], {b = 1}]\nc = """\nexclusive_user_partitions = ["no"]\n"""\nexclusive_user_partitions = ["gpu"]', "gpu" },
  { "a = '''\nexclusive_user_partitions = [\"no\"]'''\nexclusive_user_partitions = ['gpu']", "gpu" },
  { 'a = "\\"[" # [\nexclusive_user_partitions = ["gpu"]', "gpu" },
  { 'a.b = 1\nexclusive_user_partitions = ["gpu"]', "gpu" },
  { '[table]\nexclusive_user_partitions = ["no"]', "" },
  { 'a = 1\n[[tables]]\nexclusive_user_partitions = ["no"]', "" },
  { 'exclusive_user_partitions = "gpu"', "nil" },
  { "exclusive_user_partitions = [gpu]", "nil" },
  { 'exclusive_user_partitions = ["gpu" "debug"]', "nil" },
  { 'exclusive_user_partitions = ["gpu"', "nil" },
  { 'exclusive_user_partitions = ["gpu', "nil" },
  { 'exclusive_user_partitions =', "nil" },
  { "= 1\n", "nil" },
  { "a = [\n", "nil" },
  { 'a = "no end\nexclusive_user_partitions = []', "nil" },
}
for _, row in ipairs(documents) do equal(row[1], "list", list(row[1]), row[2]) end
math.randomseed(20261120)
local alphabet = { "[", "]", '"', "'", "#", "\n", "=", ",", "a", " ", "\\", '"""', "exclusive_user_partitions = " }
for _ = 1, 20000 do
  local pieces = {}
  for i = 1, math.random(0, 20) do pieces[i] = alphabet[math.random(#alphabet)] end
  local ok, problem = pcall(share.exclusive_user_partitions, table.concat(pieces))
  if not ok then equal(table.concat(pieces), "error", problem, nil) end
end

equal("a site's own script", "slurm_job_submit", slurm_job_submit, share.submit)
equal("a site's own script", "slurm_job_modify", slurm_job_modify({}, {}, {}, 1), slurm.SUCCESS)
os.exit(failures == 0 and 0 or 1)
