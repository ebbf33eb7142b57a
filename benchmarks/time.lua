-- time.lua FILE RUNS [ENCODING]: median seconds of torch.load and torch.save for a file, by the clock, then of the processor.
require 'torch'
local path, runs, encoding = arg[1], tonumber(arg[2]), arg[3] or 'binary'
local function median(work)
   local times, used = {}, {}
   for k = 1, runs do
      collectgarbage()
      local timer, clock = torch.Timer(), os.clock()
      work()
      times[k], used[k] = timer:time().real, os.clock() - clock
   end
   table.sort(times)
   table.sort(used)
   local middle = math.floor((runs + 1) / 2)
   return times[middle], used[middle]
end
local value = torch.load(path, encoding)
local target = os.tmpname()
local load, load_cpu = median(function() torch.load(path, encoding) end)
local save, save_cpu = median(function() torch.save(target, value, encoding) end)
print(load, save, load_cpu, save_cpu)
os.remove(target)
