-- An LSTM as a graph whose input gate sees the input alone: it is no cell of PyTorch.
-- th gen/found_gates.lua OUT.t7

require 'nngraph'

torch.manualSeed(20261127)

local function lstm(without_state)
   local x, c, h = nn.Identity()(), nn.Identity()(), nn.Identity()()
   local function gate(letter)
      local of_input = nn.Linear(4, 5)(x)
      if letter == without_state then return of_input end
      return nn.CAddTable()({of_input, nn.Linear(5, 5)(h)})
   end
   local i, f, o = nn.Sigmoid()(gate('i')), nn.Sigmoid()(gate('f')), nn.Sigmoid()(gate('o'))
   local g = nn.Tanh()(gate('g'))
   local next_c = nn.CAddTable()({nn.CMulTable()({f, c}), nn.CMulTable()({i, g})})
   local next_h = nn.CMulTable()({o, nn.Tanh()(next_c)})
   return nn.gModule({x, c, h}, {next_c, next_h})
end

local model = lstm('i'):double()
local inputs = {torch.randn(3, 4), torch.randn(3, 5), torch.randn(3, 5)}
local output = model:forward(inputs)
output = {output[1]:clone(), output[2]:clone()}
model:clearState()
torch.save(arg[1], {model = model, inputs = inputs, output = output})
