-- time.lua FILE RUNS: median seconds of torch.load and torch.save for a file.
require 'torch'
local path, runs = arg[1], tonumber(arg[2])
local function median(work)
   local times = {}
   for k = 1, runs do
      collectgarbage()
      local timer = torch.Timer()
      work()
      times[k] = timer:time().real
   end
   table.sort(times)
   return times[math.floor((runs + 1) / 2)]
end
local value = torch.load(path)
local target = os.tmpname()
print(median(function() torch.load(path) end), median(function() torch.save(target, value) end))
os.remove(target)
