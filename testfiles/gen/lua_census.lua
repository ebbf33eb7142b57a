-- Runs a model that lua_census.py saved, in stock nn and nngraph.
--   th lua_census.lua MODEL.t7 CASE.t7
-- Prints the largest differences from PyTorch's outputs, gradients of inputs and of weights, and of the outputs of the
-- model after torch.save; relative where numbers are above 1. A weight without a gradient is an error.
require 'nn'
require 'nngraph'

local model, case = torch.load(arg[1]), torch.load(arg[2])

local function flat(value)
   if torch.isTensor(value) then return {value} end
   local found = {}
   for _, item in ipairs(value) do
      for _, tensor in ipairs(flat(item)) do table.insert(found, tensor) end
   end
   return found
end

local function apart(own, wanted, whole)
   own, wanted = own:double():contiguous():view(-1), wanted:double():contiguous():view(-1)
   local difference = (own - wanted):abs():max() / math.max(1, torch.abs(whole or wanted):max())
   return difference == difference and difference or math.huge
end

local function largest(own, wanted)
   own, wanted = flat(own), flat(wanted)
   assert(#own == #wanted, 'another number of tensors')
   local found = 0
   for place, tensor in ipairs(wanted) do found = math.max(found, apart(own[place], tensor)) end
   return found
end

model:zeroGradParameters()
local output = largest(model:forward(case.input), case.output)
local input = largest(model:backward(case.input, case.gradOutput), case.gradInput)
local weight, seen = 0, {}
for _, module in ipairs(model:listModules()) do
   for field, entry in pairs(module.t7bridge or {}) do
      local slope = field == 'weight' and module.gradWeight or field == 'bias' and module.gradBias
      if slope then
         local whole = case.gradients[entry.key]
         local part = (entry.transposed and whole:t() or whole):contiguous():view(-1)
         weight = math.max(weight, apart(slope, part:narrow(1, (entry.start or 0) + 1, slope:nElement()), whole))
         seen[entry.key] = true
      end
   end
end
for key, slope in pairs(case.gradients) do
   assert(seen[key] or torch.abs(slope):max() == 0, 'no module has a gradient of ' .. key)
end
local before = model:forward(case.input)
local name = os.tmpname()
torch.save(name, model)
local saved = largest(torch.load(name):forward(case.input), before)
os.remove(name)
print(output, input, weight, saved)
