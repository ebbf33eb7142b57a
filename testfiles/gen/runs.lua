-- Long tables of things that are alike, and what breaks the likeness, with what describe.lua says of them.
--   th gen/runs.lua FOLDER                           (writes runs.t7 and runs.json)
require 'torch'
local folder = arg[1]
local mixed = {}
for k = 1, 300 do
   mixed[k] = {id = k, name = 'item' .. k, flag = k % 2 == 1, score = k / 7}
   if k == 40 then mixed[k].score = 'none' end
   if k == 90 then mixed[k].more = 1 end
   if k == 130 then mixed[k] = mixed[3] end
   if k == 170 then mixed[k] = torch.FloatTensor(2, 3):fill(k) end
   if k == 200 then mixed[k].name = string.rep('x', 5000) end
   if k == 230 then mixed[k] = 'text' end
end
local points = {}
for k = 1, 60 do points[k] = {k / 3, -k, true} end
local tensors, storage = {}, torch.DoubleStorage(12):fill(3)
for k = 1, 80 do
   tensors[k] = torch.DoubleTensor(2, 3):fill(k)
   if k == 20 then tensors[k] = torch.DoubleTensor(storage, 5, torch.LongStorage{2, 2}) end
   if k == 21 then tensors[k] = torch.DoubleTensor(storage) end
   if k == 40 then tensors[k] = torch.DoubleTensor() end
   if k == 50 then tensors[k] = tensors[49]:t() end
   if k == 60 then tensors[k] = torch.LongTensor(2, 3):fill(k) end
end
torch.save(folder .. '/runs.t7', {mixed = mixed, points = points, tensors = tensors})

local describe = dofile((arg[0]:match('^(.*/)') or './') .. 'describe.lua')
local json = assert(io.open(folder .. '/runs.json', 'w'))
json:write(describe(torch.load(folder .. '/runs.t7')))
json:close()
