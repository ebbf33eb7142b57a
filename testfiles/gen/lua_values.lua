-- th lua_values.lua FOLDER values.t7: what the models of lua_values.py compute, and their structure
require 'nn'
require 'nngraph'

local folder, target = arg[1], arg[2]
local results = {}
for name in io.lines(folder .. '/names.txt') do
   local layers = folder .. '/' .. name .. '/layers.lua'
   if paths.filep(layers) then dofile(layers) end
   local model = torch.load(folder .. '/' .. name .. '/model.t7')
   model:evaluate()
   local input = torch.load(folder .. '/' .. name .. '/input.t7')
   local output = model:forward(#input == 1 and input[1] or input)
   local classes = {}
   for _, module in ipairs(model:listModules()) do table.insert(classes, torch.type(module)) end
   results[name] = {output = output:clone(), classes = table.concat(classes, ' ')}
end
torch.save(target, results)
