-- time.lua FILE RUNS [ENCODING]: median seconds of torch.load and torch.save for a file.
require 'torch'
local path, runs, encoding = arg[1], tonumber(arg[2]), arg[3] or 'binary'
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
local value = torch.load(path, encoding)
local target = os.tmpname()
print(median(function() torch.load(path, encoding) end), median(function() torch.save(target, value, encoding) end))
os.remove(target)
