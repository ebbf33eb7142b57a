-- Layers with the meaning of PyTorch's functions, which nn lacks. Indices count from 0, as in PyTorch.

require 'nn'
pt = pt or {}

-- A new class of the package pt; `nil` if it is there already.
local function class(name)
   local full = 'pt.' .. name
   if not torch.getmetatable(full) then return (torch.class(full, 'nn.Module')) end
end

-- [add_at]
-- Adds elements to those of a tensor at indices of a dimension, from 1, as often as these occur.
local function add_at(tensor, dim, index, elements)
   local places, step = index.new():resizeAs(index):fill(1), 1
   for d = index:dim(), 1, -1 do
      local count = index:size(d)
      local shape = torch.LongStorage(index:dim()):fill(1)
      shape[d] = count
      local along = d == dim and index - 1 or torch.range(0, count - 1):typeAs(index):view(shape):expandAs(index)
      places:add(along * step)
      step = step * tensor:size(d)
   end
   tensor:view(-1):indexAdd(1, places:view(-1), elements:contiguous():view(-1))
   return tensor
end

-- [from_one]
-- Indices from 1 of a dimension of so many elements, of those from 0, or from -1 for the last one.
local function from_one(index, extent)
   index = index:long()
   return index + 1 + index:lt(0):long() * extent
end

-- [Function]
-- A function of each element: `pt.Function('sin')`.
do
   local function zero(x) return x.new():resizeAs(x):zero() end
   -- Halves go to the even neighbour.
   local function round(x)
      local y = torch.floor(x)
      local rest = x - y
      local odd = rest:eq(0.5):typeAs(x):cmul(torch.remainder(y, 2))
      return y + rest:gt(0.5):typeAs(x) + odd
   end
   local function sq(x) return torch.cmul(x, x) end
   local functions = {
      sin = {torch.sin, torch.cos},
      cos = {torch.cos, function(x) return -torch.sin(x) end},
      tan = {torch.tan, function(x) return sq(torch.tan(x)) + 1 end},
      asin = {torch.asin, function(x) return torch.pow(-sq(x) + 1, -0.5) end},
      acos = {torch.acos, function(x) return -torch.pow(-sq(x) + 1, -0.5) end},
      atan = {torch.atan, function(x) return torch.pow(sq(x) + 1, -1) end},
      sinh = {torch.sinh, torch.cosh},
      cosh = {torch.cosh, torch.sinh},
      asinh = {
         function(x) return torch.cmul(torch.sign(x), torch.log(torch.abs(x) + torch.sqrt(sq(x) + 1))) end,
         function(x) return torch.pow(sq(x) + 1, -0.5) end,
      },
      atanh = {
         function(x) return torch.log(torch.cdiv(x + 1, -x + 1)) * 0.5 end,
         function(x) return torch.pow(-sq(x) + 1, -1) end,
      },
      floor = {torch.floor, zero},
      ceil = {torch.ceil, zero},
      trunc = {torch.trunc, zero},
      round = {round, zero},
      isnan = {function(x) return x:ne(x):typeAs(x) end, zero},
      isinf = {function(x) return torch.abs(x):eq(math.huge):typeAs(x) end, zero},
   }
   local Function = class('Function')
   if Function then
      function Function:__init(name)
         nn.Module.__init(self)
         self.name = name
      end
      function Function:updateOutput(input)
         self.output:resizeAs(input):copy(functions[self.name][1](input))
         return self.output
      end
      function Function:updateGradInput(input, gradOutput)
         self.gradInput:resizeAs(input):copy(functions[self.name][2](input)):cmul(gradOutput)
         return self.gradInput
      end
   end
end

-- [Binary]
-- A function of each pair of elements of two tensors of one shape: `pt.Binary('atan2')`.
do
   -- The remainder of C is exact; that of a division which was rounded is not.
   local function other_sign(rest, y) return rest:ne(0):cmul(rest:lt(0):ne(y:lt(0))) end
   local function remainder(x, y)
      local rest = torch.cfmod(x, y)
      local wrong = other_sign(rest, y)
      if wrong:any() then rest[wrong] = rest[wrong] + y[wrong] end
      return rest
   end
   local function floored(x, y)
      local rest = torch.cfmod(x, y)
      local quotient = torch.cdiv(x - rest, y) - other_sign(rest, y):typeAs(x)
      local whole = torch.floor(quotient)
      whole:add((quotient - whole):gt(0.5):typeAs(x))
      local zero = y:eq(0)
      if zero:any() then whole[zero] = torch.cdiv(x, y)[zero] end
      return whole
   end
   local function cut(x, y) return torch.trunc(torch.cdiv(x, y)) end
   local function no_slopes(x, y) return x.new():resizeAs(x):zero(), y.new():resizeAs(y):zero() end
   local functions = {
      atan2 = {
         torch.atan2,
         function(x, y)
            local r = torch.cmul(x, x) + torch.cmul(y, y)
            return torch.cdiv(y, r), -torch.cdiv(x, r)
         end,
      },
      pow = {
         torch.cpow,
         function(x, y)
            local slope = torch.cmul(torch.cpow(x, y), torch.log(x))
            slope[x:eq(0)] = 0
            return torch.cmul(y, torch.cpow(x, y - 1)), slope
         end,
      },
      fmod = {
         torch.cfmod,
         function(x, y) return x.new():resizeAs(x):fill(1), -cut(x, y) end,
      },
      remainder = {
         remainder,
         function(x, y) return x.new():resizeAs(x):fill(1), -floored(x, y) end,
      },
      floor_divide = {floored, no_slopes},
      trunc_divide = {cut, no_slopes},
   }
   local Binary = class('Binary')
   if Binary then
      function Binary:__init(name)
         nn.Module.__init(self)
         self.name, self.gradInput = name, {}
      end
      function Binary:updateOutput(input)
         self.output:resizeAs(input[1]):copy(functions[self.name][1](input[1], input[2]))
         return self.output
      end
      function Binary:updateGradInput(input, gradOutput)
         local slopes = {functions[self.name][2](input[1], input[2])}
         self.gradInput = {slopes[1]:cmul(gradOutput), slopes[2]:cmul(gradOutput)}
         return self.gradInput
      end
   end
end

-- [CumProd]
-- The products of the elements up to each one of a dimension.
do
   local CumProd = class('CumProd')
   if CumProd then
      function CumProd:__init(dim)
         nn.Module.__init(self)
         self.dim = dim
      end
      function CumProd:updateOutput(input)
         self.output:resizeAs(input):copy(torch.cumprod(input, self.dim))
         return self.output
      end
      -- Without a division, as elements may be 0.
      function CumProd:updateGradInput(input, gradOutput)
         local count = input:size(self.dim)
         self.gradInput:resizeAs(input):zero()
         for i = 1, count do
            local slope = self.gradInput:narrow(self.dim, i, 1)
            local product = i > 1 and self.output:narrow(self.dim, i - 1, 1):clone() or slope:clone():fill(1)
            for j = i, count do
               if j > i then product:cmul(input:narrow(self.dim, j, 1)) end
               slope:add(torch.cmul(product, gradOutput:narrow(self.dim, j, 1)))
            end
         end
         return self.gradInput
      end
   end
end

-- [Sort]
-- The elements of a dimension in order, and their indices: {values, indices}.
do
   local Sort = class('Sort')
   if Sort then
      function Sort:__init(dim, descending)
         nn.Module.__init(self)
         self.dim, self.descending = dim, descending
      end
      function Sort:updateOutput(input)
         local values, places = torch.sort(input, self.dim, self.descending or false)
         self.places = places
         self.output = {values, (places - 1):typeAs(input)}
         return self.output
      end
      function Sort:updateGradInput(input, gradOutput)
         self.gradInput:resizeAs(input):zero():scatter(self.dim, self.places, gradOutput[1])
         return self.gradInput
      end
   end
end

-- [ArgMax]
-- The index of the largest, or smallest, element of a dimension, which the output does not have.
do
   local ArgMax = class('ArgMax')
   if ArgMax then
      function ArgMax:__init(dim, smallest)
         nn.Module.__init(self)
         self.dim, self.smallest = dim, smallest
      end
      function ArgMax:updateOutput(input)
         local _, places = (self.smallest and torch.min or torch.max)(input, self.dim)
         places = places:select(self.dim, 1)
         self.output = (places - 1):typeAs(input)
         return self.output
      end
      function ArgMax:updateGradInput(input)
         self.gradInput:resizeAs(input):zero()
         return self.gradInput
      end
   end
end

-- [Gather]
-- The elements of a tensor at indices of a dimension: {tensor, indices}, of the shape of the indices.
do
   local Gather = class('Gather')
   if Gather then
      function Gather:__init(dim)
         nn.Module.__init(self)
         self.dim, self.gradInput = dim, {}
      end
      function Gather:updateOutput(input)
         self.output = input[1]:gather(self.dim, from_one(input[2], input[1]:size(self.dim)))
         return self.output
      end
      function Gather:updateGradInput(input, gradOutput)
         local slope = input[1].new():resizeAs(input[1]):zero()
         add_at(slope, self.dim, from_one(input[2], slope:size(self.dim)), gradOutput)
         self.gradInput = {slope, input[2].new():resizeAs(input[2]):zero()}
         return self.gradInput
      end
   end
end

-- [Scatter]
-- A tensor with other elements at indices of a dimension, or with these added: {tensor, indices, elements}.
do
   local Scatter = class('Scatter')
   if Scatter then
      function Scatter:__init(dim, adds)
         nn.Module.__init(self)
         self.dim, self.adds, self.gradInput = dim, adds, {}
      end
      function Scatter:updateOutput(input)
         local made = input[1]:clone()
         local places = from_one(input[2], made:size(self.dim))
         if self.adds then
            add_at(made, self.dim, places, input[3])
         else
            made:scatter(self.dim, places, input[3])
         end
         self.output = made
         return self.output
      end
      function Scatter:updateGradInput(input, gradOutput)
         local slope = gradOutput:clone()
         local places = from_one(input[2], slope:size(self.dim))
         if not self.adds then slope:scatter(self.dim, places, 0) end
         local zeros = input[2].new():resizeAs(input[2]):zero()
         self.gradInput = {slope, zeros, gradOutput:gather(self.dim, places)}
         return self.gradInput
      end
   end
end

-- [Fold]
-- Sums of overlapping blocks, the opposite of unfolding: (batch, channels · kH · kW, blocks) becomes an image.
do
   local Fold = class('Fold')
   if Fold then
      function Fold:__init(height, width, kH, kW, dH, dW, padH, padW, dilationH, dilationW)
         nn.Module.__init(self)
         self.height, self.width, self.kH, self.kW, self.dH, self.dW = height, width, kH, kW, dH, dW
         self.padH, self.padW, self.dilationH, self.dilationW = padH, padW, dilationH, dilationW
      end
      -- Calls f(part of an image, part of the blocks) for each element of the kernel.
      function Fold:each(image, blocks, f)
         local rows = math.floor((image:size(3) - self.dilationH * (self.kH - 1) - 1) / self.dH) + 1
         local columns = math.floor((image:size(4) - self.dilationW * (self.kW - 1) - 1) / self.dW) + 1
         local parts = blocks:contiguous():view(blocks:size(1), -1, self.kH, self.kW, rows, columns)
         for i = 1, self.kH do
            for j = 1, self.kW do
               local part = image:narrow(3, (i - 1) * self.dilationH + 1, (rows - 1) * self.dH + 1)
               part = part:narrow(4, (j - 1) * self.dilationW + 1, (columns - 1) * self.dW + 1)
               part = part:unfold(3, 1, self.dH):select(5, 1):unfold(4, 1, self.dW):select(5, 1)
               f(part, parts:select(3, i):select(3, j))
            end
         end
      end
      function Fold:updateOutput(input)
         local channels = input:size(2) / (self.kH * self.kW)
         local height, width = self.height + 2 * self.padH, self.width + 2 * self.padW
         local image = input.new(input:size(1), channels, height, width):zero()
         self:each(image, input, function(part, block) part:add(block) end)
         image = image:narrow(3, self.padH + 1, self.height):narrow(4, self.padW + 1, self.width)
         self.output = image:contiguous()
         return self.output
      end
      function Fold:updateGradInput(input, gradOutput)
         local size = gradOutput:size()
         local image = input.new(size[1], size[2], size[3] + 2 * self.padH, size[4] + 2 * self.padW):zero()
         image:narrow(3, self.padH + 1, self.height):narrow(4, self.padW + 1, self.width):copy(gradOutput)
         self.gradInput:resizeAs(input)
         self:each(image, self.gradInput, function(part, block) block:copy(part) end)
         return self.gradInput
      end
   end
end

-- [GridSample]
-- An image at the places of a grid: {images (batch, channels, height, width), grid (batch, height, width, 2)}, whose
-- x and y go from -1 to 1; `align`: these are the centres of the first and last pixels, not their borders.
do
   local GridSample = class('GridSample')
   if GridSample then
      function GridSample:__init(mode, padding, align)
         nn.Module.__init(self)
         self.mode, self.padding, self.align, self.gradInput = mode, padding, align, {}
      end
      -- Places in pixels from 0, along a side, and their slope with respect to the grid.
      function GridSample:places(grid, extent)
         local slope = (self.align and extent - 1 or extent) / 2
         local place = (grid + 1) * slope
         if not self.align then place:add(-0.5) end
         local slopes = place.new():resizeAs(place):fill(slope)
         if self.padding == 'border' then
            slopes:cmul(torch.cmul(place:ge(0):typeAs(place), place:le(extent - 1):typeAs(place)))
            place:clamp(0, extent - 1)
         end
         return place, slopes
      end
      -- Calls f(index of a pixel, its weight, the signs of x and y in it) for each pixel around the places.
      function GridSample:each(x, y, height, width, f)
         local function visit(column, row, weight, dx, dy)
            local inside = torch.cmul(column:ge(0):typeAs(x), column:lt(width):typeAs(x))
            inside:cmul(row:ge(0):typeAs(x)):cmul(row:lt(height):typeAs(x))
            local index = row:clone():clamp(0, height - 1) * width + column:clone():clamp(0, width - 1)
            f(index:long() + 1, weight:cmul(inside), dx and dx:cmul(inside), dy and dy:cmul(inside))
         end
         if self.mode == 'nearest' then
            local function round(v)  -- halves go to the even neighbour
               local up = torch.floor(v + 0.5)
               return up - (up - v):eq(0.5):typeAs(v):cmul(torch.remainder(up, 2))
            end
            return visit(round(x), round(y), x.new():resizeAs(x):fill(1))
         end
         local left, top = torch.floor(x), torch.floor(y)
         local wx, wy = x - left, y - top
         for i = 0, 1 do
            for j = 0, 1 do
               local across, down = i == 0 and -wx + 1 or wx:clone(), j == 0 and -wy + 1 or wy:clone()
               visit(left + i, top + j, torch.cmul(across, down), down * (2 * i - 1), across * (2 * j - 1))
            end
         end
      end
      function GridSample:flat(input)
         local images, grid = input[1], input[2]
         local batch, channels, height, width = unpack(images:size():totable())
         local x, dx = self:places(grid:select(4, 1):contiguous():view(batch, 1, -1), width)
         local y, dy = self:places(grid:select(4, 2):contiguous():view(batch, 1, -1), height)
         return images:contiguous():view(batch, channels, -1), x, y, height, width, dx, dy
      end
      function GridSample:updateOutput(input)
         local flat, x, y, height, width = self:flat(input)
         local made = flat.new(flat:size(1), flat:size(2), x:size(3)):zero()
         self:each(x, y, height, width, function(index, weight)
            made:add(torch.cmul(flat:gather(3, index:expandAs(made):contiguous()), weight:expandAs(made)))
         end)
         self.output = made:view(flat:size(1), flat:size(2), input[2]:size(2), input[2]:size(3))
         return self.output
      end
      function GridSample:updateGradInput(input, gradOutput)
         local flat, x, y, height, width, dx, dy = self:flat(input)
         local slope = gradOutput:contiguous():view(flat:size(1), flat:size(2), -1)
         local image, along, down = flat:clone():zero(), x:clone():zero(), y:clone():zero()
         self:each(x, y, height, width, function(index, weight, byX, byY)
            local wide = index:expandAs(slope):contiguous()
            add_at(image, 3, wide, torch.cmul(slope, weight:expandAs(slope)))
            if byX then
               local product = torch.cmul(flat:gather(3, wide), slope):sum(2)
               along:add(torch.cmul(product, byX)); down:add(torch.cmul(product, byY))
            end
         end)
         local grid = input[2].new():resizeAs(input[2]):zero()
         grid:select(4, 1):copy(along:cmul(dx)); grid:select(4, 2):copy(down:cmul(dy))
         self.gradInput = {image:viewAs(input[1]), grid}
         return self.gradInput
      end
   end
end

-- [MaxPlaces]
-- The indices, counted along rows, of the maxima of windows of an image.
do
   local MaxPlaces = class('MaxPlaces')
   if MaxPlaces then
      function MaxPlaces:__init(kW, kH, dW, dH, padW, padH, dilationW, dilationH, ceil_mode)
         nn.Module.__init(self)
         self.kW, self.kH, self.dW, self.dH, self.padW, self.padH = kW, kH, dW, dH, padW, padH
         self.dilationW, self.dilationH, self.ceil_mode = dilationW, dilationH, ceil_mode
      end
      function MaxPlaces:updateOutput(input)
         local pool = nn.SpatialDilatedMaxPooling(self.kW, self.kH, self.dW, self.dH, self.padW, self.padH,
            self.dilationW, self.dilationH):type(input:type())
         pool.ceil_mode = self.ceil_mode
         pool:forward(input)
         self.output = (pool.indices - 1):typeAs(input)
         return self.output
      end
      function MaxPlaces:updateGradInput(input)
         self.gradInput:resizeAs(input):zero()
         return self.gradInput
      end
   end
end

-- [Convolution]
-- A convolution whose kernels are computed: {images, kernels (out, in / groups, kH, kW)}.
do
   local Convolution = class('Convolution')
   if Convolution then
      function Convolution:__init(dW, dH, padW, padH, dilationW, dilationH)
         nn.Module.__init(self)
         self.dW, self.dH, self.padW, self.padH = dW, dH, padW, padH
         self.dilationW, self.dilationH, self.gradInput = dilationW, dilationH, {}
      end
      -- Calls f(layer, first channel, last, first output, last) for each group, and joins what it returns.
      function Convolution:each(images, kernels, f)
         local made, size = {}, kernels:size()
         local groups = images:size(2) / size[2]
         local outputs = size[1] / groups
         for group = 1, groups do
            local layer = nn.SpatialDilatedConvolution(size[2], outputs, size[4], size[3], self.dW, self.dH,
               self.padW, self.padH, self.dilationW, self.dilationH):noBias():type(kernels:type())
            layer.weight:copy(kernels:narrow(1, (group - 1) * outputs + 1, outputs))
            made[group] = f(layer, (group - 1) * size[2] + 1, size[2], (group - 1) * outputs + 1, outputs)
         end
         return torch.cat(made, 2)
      end
      function Convolution:updateOutput(input)
         self.output = self:each(input[1], input[2], function(layer, first, count)
            return layer:forward(input[1]:narrow(2, first, count):contiguous()):clone()
         end)
         return self.output
      end
      function Convolution:updateGradInput(input, gradOutput)
         local slopes = input[2].new():resizeAs(input[2])
         local images = self:each(input[1], input[2], function(layer, first, count, from, outputs)
            local part, slope = input[1]:narrow(2, first, count):contiguous(), gradOutput:narrow(2, from, outputs):contiguous()
            layer:forward(part)
            layer:zeroGradParameters()
            layer:accGradParameters(part, slope)
            slopes:narrow(1, from, outputs):copy(layer.gradWeight)
            return layer:updateGradInput(part, slope):clone()
         end)
         self.gradInput = {images, slopes}
         return self.gradInput
      end
   end
end
