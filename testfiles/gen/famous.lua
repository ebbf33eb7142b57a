-- famous.lua FOLDER [WIDTH [NAME...]]: models that people know by name, built by their published definitions.
-- FOLDER/NAME.t7 is the model in evaluate mode; FOLDER/NAME.io.t7 is {input=, output=}, for the smaller ones.
-- WIDTH divides the number of channels, of hidden units and of classes: 1 is the published model.
-- All weights are views of one storage, with small strides that overlap, and the input is such a view, so that a file of
-- any model is small.
require "torch"; require "nn"
local folder, width = assert(arg[1]), tonumber(arg[2] or 1)
local wanted = {}
for at = 3, #arg do wanted[arg[at]] = true end
torch.setdefaulttensortype("torch.FloatTensor")

-- Weights: a stretch of the storage for each scale, and one of positive numbers for what batch normalization needs.
local storage, stretches, used
local SIZE = 8000
local function stretch(kind, size, draw)
   local found = stretches[kind]
   if not found or found.size < size then
      found = {at = used + 1, size = size}
      stretches[kind], used = found, used + size
      storage:resize(used)
      draw(torch.FloatTensor(storage, found.at, torch.LongStorage{size}))
   end
   return found
end
local drawn = 0
local function weights(kind, draw, ...)
   local sizes, strides, extent = {...}, {}, 1
   for dim, size in ipairs(sizes) do
      strides[dim] = ({{1}, {5, 1}, {7, 3, 1}, {7, 3, 2, 1}})[#sizes][dim]
      extent = extent + (size - 1) * strides[dim]
   end
   local room = stretch(kind, math.max(math.ceil(SIZE / width), extent + 200), draw)
   drawn = drawn + 1
   local first = room.at + drawn * 37 % (room.size - extent + 1)
   assert(first + extent - 1 <= room.at + room.size - 1)
   return torch.FloatTensor(storage, first, torch.LongStorage(sizes), torch.LongStorage(strides))
end
local function normal(fan, ...)
   local octave = math.ceil(math.log(fan) / math.log(4))
   return weights(octave, function(t) t:normal(0, math.sqrt(2 / 4 ^ octave)) end, ...)
end
local function small(n) return weights("small", function(t) t:uniform(-0.2, 0.2) end, n) end
local function positive(n) return weights("positive", function(t) t:uniform(0.6, 1.4) end, n) end

-- Layers. They are made small and then get their weights, as the published ones would need gigabytes.
local function w(n) return math.max(1, math.floor(n / width)) end
local function conv(ni, no, k, s, p, bias, k2, p2)
   local kh, ph = k2 or k, p2 or p
   local m = nn.SpatialConvolution(1, 1, k, kh, s or 1, s or 1, p or 0, ph or 0)
   m.nInputPlane, m.nOutputPlane = ni, no
   m.weight, m.gradWeight = normal(ni * k * kh, no, ni, kh, k), nil
   m.bias, m.gradBias = bias ~= false and small(no) or nil, nil
   return m
end
local function linear(ni, no)
   local m = nn.Linear(1, 1)
   m.weight, m.bias, m.gradWeight, m.gradBias = normal(ni, no, ni), small(no), nil, nil
   return m
end
local function normalized(m, n)
   m.weight, m.bias, m.running_mean, m.running_var = positive(n), small(n), small(n), positive(n)
   m.gradWeight, m.gradBias = nil, nil
   return m
end
local function norm(n, eps) return normalized(nn.SpatialBatchNormalization(n, eps), n) end
local function relu() return nn.ReLU(true) end
local function max(k, s, p) return nn.SpatialMaxPooling(k, k, s, s, p or 0, p or 0) end
local function avg(k, s, p) return nn.SpatialAveragePooling(k, k, s or 1, s or 1, p or 0, p or 0) end
local function seq(...)
   local net = nn.Sequential()
   for _, m in ipairs{...} do net:add(m) end
   return net
end
local function concat(...)
   local net = nn.Concat(2)
   for _, m in ipairs{...} do net:add(m) end
   return net
end
local function append(net, ...)
   for _, m in ipairs{...} do net:add(m) end
   return net
end
local classes = w(1000)

-- Residual networks, as in fb.resnet.torch: shortcuts of type B, stride in the 3x3 convolution.
local function both(branch, shortcut)
   return seq(nn.ConcatTable():add(branch):add(shortcut), nn.CAddTable(true))
end
local function basic(ni, n, s)
   local branch = seq(conv(ni, n, 3, s, 1, false), norm(n), relu(), conv(n, n, 3, 1, 1, false), norm(n))
   local same = ni == n
   return both(branch, same and nn.Identity() or seq(conv(ni, n, 1, s, 0, false), norm(n))):add(relu()), n
end
local function bottleneck(ni, n, s)
   local branch = seq(
      conv(ni, n, 1, 1, 0, false), norm(n), relu(), conv(n, n, 3, s, 1, false), norm(n), relu(),
      conv(n, 4 * n, 1, 1, 0, false), norm(4 * n))
   local same = ni == 4 * n
   return both(branch, same and nn.Identity() or seq(conv(ni, 4 * n, 1, s, 0, false), norm(4 * n))):add(relu()), 4 * n
end
-- Before an activation: the first block of the network has none, the first of a stage shares it with its shortcut.
local function pre(narrow)
   return function(ni, n, s, place)
      local no, branch, block = narrow and 4 * n or n, seq(), seq()
      if place == "stage" then append(block, norm(ni), relu()) elseif not place then append(branch, norm(ni), relu()) end
      if narrow then
         append(branch, conv(ni, n, 1, 1, 0, false), norm(n), relu(), conv(n, n, 3, s, 1, false), norm(n), relu(),
            conv(n, no, 1, 1, 0, false))
      else
         append(branch, conv(ni, n, 3, s, 1, false), norm(n), relu(), conv(n, n, 3, 1, 1, false))
      end
      local shortcut = ni == no and nn.Identity() or seq(conv(ni, no, 1, s, 0, false))
      return append(block, unpack(both(branch, shortcut).modules)), no
   end
end
local function resnet(block, counts, is_pre)
   local ni = w(64)
   local net = seq(conv(3, ni, 7, 2, 3, false), norm(ni), relu(), max(3, 2, 1))
   for stage, count in ipairs(counts) do
      local layer = seq()
      for number = 1, count do
         local first = number == 1
         local m
         m, ni = block(ni, w(64 * 2 ^ (stage - 1)), first and stage > 1 and 2 or 1,
            first and (stage == 1 and "net" or "stage"))
         layer:add(m)
      end
      net:add(layer)
   end
   if is_pre then append(net, norm(ni), relu()) end
   return append(net, avg(7), nn.View(ni):setNumInputDims(3), linear(ni, classes))
end

-- VGG and AlexNet, as in imagenet-multiGPU.torch; OverFeat's threshold where they have it.
local function threshold() return nn.Threshold(0, 1e-6) end
local function classifier(ni, hidden, activation, dropout_first)
   local net = seq(nn.View(ni))
   if dropout_first then net:add(nn.Dropout(0.5)) end
   append(net, linear(ni, hidden), activation())
   if not dropout_first then net:add(nn.Dropout(0.5)) end
   if dropout_first then net:add(nn.Dropout(0.5)) end
   append(net, linear(hidden, hidden), activation())
   if not dropout_first then net:add(nn.Dropout(0.5)) end
   return append(net, linear(hidden, classes), nn.LogSoftMax())
end
local function vgg(counts, eps, activation)
   local net, ni = seq(), 3
   for stage, count in ipairs(counts) do
      local n = w(({64, 128, 256, 512, 512})[stage])
      for _ = 1, count do
         net:add(conv(ni, n, 3, 1, 1))
         if eps then net:add(norm(n, eps)) end
         net:add(relu())
         ni = n
      end
      net:add(max(2, 2))
   end
   return seq(net, classifier(ni * 49, w(4096), activation or function() return nn.ReLU(true) end, false))
end
-- As loadcaffe writes Caffe's VGG: one list, ceil mode, a softmax at the end; channels blue, green, red of 0 to 255.
local function vgg_caffe(counts)
   local net = seq(unpack(vgg(counts).modules[1].modules))
   for _, m in ipairs(net:findModules("nn.SpatialMaxPooling")) do m:ceil() end
   local ni = w(512) * 49
   return append(net, nn.View(-1):setNumInputDims(3), linear(ni, w(4096)), relu(), nn.Dropout(0.5),
      linear(w(4096), w(4096)), relu(), nn.Dropout(0.5), linear(w(4096), classes), nn.SoftMax())
end
local function alexnet_owt()
   local a, b, c, d = w(64), w(192), w(384), w(256)
   return seq(
      seq(conv(3, a, 11, 4, 2), relu(), max(3, 2), conv(a, b, 5, 1, 2), relu(), max(3, 2), conv(b, c, 3, 1, 1), relu(),
         conv(c, d, 3, 1, 1), relu(), conv(d, d, 3, 1, 1), relu(), max(3, 2)),
      classifier(d * 36, w(4096), nn.ReLU, true))
end
local function alexnet_columns()
   local function column()
      local a, b, c = w(48), w(128), w(192)
      return seq(conv(3, a, 11, 4, 2), relu(), max(3, 2), conv(a, b, 5, 1, 2), relu(), max(3, 2), conv(b, c, 3, 1, 1),
         relu(), conv(c, c, 3, 1, 1), relu(), conv(c, b, 3, 1, 1), relu(), max(3, 2))
   end
   return seq(concat(column(), column()), classifier(2 * w(128) * 36, w(4096), threshold, true))
end
-- The published AlexNet: two columns that meet in the third convolution, with normalization across channels.
local function alexnet_groups()
   local function halves(ni, no, k, p)
      local function half(first) return seq(nn.Narrow(2, first, ni / 2), conv(ni / 2, no / 2, k, 1, p)) end
      return concat(half(1), half(1 + ni / 2))
   end
   local function lrn() return nn.SpatialCrossMapLRN(5, 1e-4, 0.75, 1) end
   local a, b, c, d = w(96), w(256), w(384), w(4096)
   return seq(conv(3, a, 11, 4, 0), relu(), lrn(), max(3, 2), halves(a, b, 5, 2), relu(), lrn(), max(3, 2),
      conv(b, c, 3, 1, 1), relu(), halves(c, c, 3, 1), relu(), halves(c, b, 3, 1), relu(), max(3, 2), nn.View(b * 36),
      linear(b * 36, d), relu(), nn.Dropout(0.5), linear(d, d), relu(), nn.Dropout(0.5), linear(d, classes), nn.SoftMax())
end

-- GoogLeNet, as published: normalization across channels, no batch normalization; without the auxiliary classifiers.
local INCEPTION = {
   {64, 96, 128, 16, 32, 32}, {128, 128, 192, 32, 96, 64}, "max", {192, 96, 208, 16, 48, 64},
   {160, 112, 224, 24, 64, 64}, {128, 128, 256, 24, 64, 64}, {112, 144, 288, 32, 64, 64},
   {256, 160, 320, 32, 128, 128}, "max", {256, 160, 320, 32, 128, 128}, {384, 192, 384, 48, 128, 128}}
local function googlenet(unit, last_kernel)
   local function lrn() return unit and nn.Identity() or nn.SpatialCrossMapLRN(5, 1e-4, 0.75, 1) end
   unit = unit or function(...) return conv(...), relu() end
   local net, ni = seq(unit(3, w(64), 7, 2, 3)), w(192)
   append(net, max(3, 2):ceil())
   if last_kernel == 5 then net:add(lrn()) end
   append(net, unit(w(64), w(64), 1)); append(net, unit(w(64), ni, 3, 1, 1))
   if last_kernel == 5 then net:add(lrn()) end
   net:add(max(3, 2):ceil())
   for at, row in ipairs(INCEPTION) do
      if row == "max" then
         local k = at > 3 and last_kernel == 3 and 2 or 3
         net:add(max(k, 2):ceil())
      else
         local n = {}
         for i, each in ipairs(row) do n[i] = w(each) end
         local three, five = seq(unit(ni, n[2], 1)), seq(unit(ni, n[4], 1))
         append(three, unit(n[2], n[3], 3, 1, 1)); append(five, unit(n[4], n[5], last_kernel, 1, (last_kernel - 1) / 2))
         local pool = seq(max(3, 1, 1):ceil())
         append(pool, unit(ni, n[6], 1))
         net:add(concat(seq(unit(ni, n[1], 1)), three, five, pool))
         ni = n[1] + n[3] + n[5] + n[6]
      end
   end
   return append(net, avg(7), nn.View(ni):setNumInputDims(3), nn.Dropout(0.4), linear(ni, classes))
end
local function conv_norm(eps)
   return function(ni, no, k, s, p, k2, p2) return seq(conv(ni, no, k, s, p, false, k2, p2), norm(no, eps), relu()) end
end
-- That of imagenet-multiGPU.torch: pairs of 3x3, two outputs beside one another.
local function googlenet_multi(eps)
   local function unit(...)
      local args = {...}
      return eps and seq(conv(...), norm(args[2], eps), relu()) or seq(conv(...), relu())
   end
   local function block(ni, one, three, double, kind, proj)
      local net = nn.Concat(2)
      if one > 0 then net:add(unit(ni, w(one), 1)) end
      net:add(seq(unit(ni, w(three[1]), 1), unit(w(three[1]), w(three[2]), 3, 1, 1)))
      net:add(seq(unit(ni, w(double[1]), 1), unit(w(double[1]), w(double[2]), 3, 1, 1),
         unit(w(double[2]), w(double[2]), 3, 1, 1)))
      local pool = seq(nn.SpatialZeroPadding(1, 1, 1, 1), (kind == "max" and max(3, 1) or avg(3, 1)):ceil())
      if proj > 0 then pool:add(unit(ni, w(proj), 1)) end
      return net:add(pool), w(one) * (one > 0 and 1 or 0) + w(three[2]) + w(double[2]) + (proj > 0 and w(proj) or ni)
   end
   local ni = w(192)
   local net = seq(unit(3, w(64), 7, 2, 3), max(3, 2):ceil(), unit(w(64), w(64), 1), unit(w(64), ni, 3, 1, 1),
      max(3, 2):ceil())
   local function add(to, ...)
      local m
      m, ni = block(ni, ...)
      to:add(m)
   end
   add(net, 64, {64, 64}, {64, 96}, "avg", 32); add(net, 64, {64, 96}, {64, 96}, "avg", 64)
   add(net, 0, {128, 160}, {64, 96}, "max", 0)
   net:add(conv(ni, ni, 2, 2))
   add(net, 224, {64, 96}, {96, 128}, "avg", 128); add(net, 192, {96, 128}, {96, 128}, "avg", 128)
   add(net, 160, {128, 160}, {128, 160}, "avg", 96); add(net, 96, {128, 192}, {160, 192}, "avg", 96)
   local middle, main = ni, seq()
   add(main, 0, {128, 192}, {192, 256}, "max", 0)
   main:add(conv(ni, ni, 2, 2))
   add(main, 352, {192, 320}, {160, 224}, "avg", 128); add(main, 352, {192, 320}, {192, 224}, "max", 128)
   append(main, avg(7), nn.View(ni):setNumInputDims(3), linear(ni, classes), nn.LogSoftMax())
   local side = seq(avg(5, 3):ceil(), conv(middle, w(128), 1), nn.View(w(128) * 16):setNumInputDims(3),
      linear(w(128) * 16, w(768)), nn.ReLU(), linear(w(768), classes), nn.LogSoftMax())
   return seq(net, concat(main, side))
end

-- Inception-v3. In the network of TensorFlow (as inception-v3.torch makes it) averages leave out the padding, the last
-- block pools by maximum, and a softmax is at the end of its 1008 outputs.
local function inception_v3(tensorflow)
   local unit = conv_norm(1e-3)
   local function tall(ni, no, k) return unit(ni, no, 1, 1, 0, k, (k - 1) / 2) end
   local function flat(ni, no, k) return unit(ni, no, k, 1, (k - 1) / 2, 1, 0) end
   local join = tensorflow and function(...) return append(nn.DepthConcat(2), ...) end or concat
   local function mean(ni, no, m)
      m = m or avg(3, 1, 1)
      if tensorflow and m.setCountExcludePad then m:setCountExcludePad() end
      return seq(m, unit(ni, no, 1))
   end
   local function a(ni, pool)
      return join(unit(ni, w(64), 1), seq(unit(ni, w(48), 1), unit(w(48), w(64), 5, 1, 2)),
         seq(unit(ni, w(64), 1), unit(w(64), w(96), 3, 1, 1), unit(w(96), w(96), 3, 1, 1)), mean(ni, pool)),
         2 * w(64) + w(96) + pool
   end
   local function b(ni)
      return join(unit(ni, w(384), 3, 2), seq(unit(ni, w(64), 1), unit(w(64), w(96), 3, 1, 1), unit(w(96), w(96), 3, 2)),
         seq(max(3, 2))), w(384) + w(96) + ni
   end
   local function c(ni, n)
      local no = w(192)
      return join(unit(ni, no, 1), seq(unit(ni, n, 1), flat(n, n, 7), tall(n, no, 7)),
         seq(unit(ni, n, 1), tall(n, n, 7), flat(n, n, 7), tall(n, n, 7), flat(n, no, 7)), mean(ni, no)), 4 * no
   end
   local function d(ni)
      local n = w(192)
      return join(seq(unit(ni, n, 1), unit(n, w(320), 3, 2)), seq(unit(ni, n, 1), flat(n, n, 7), tall(n, n, 7),
         unit(n, n, 3, 2)), seq(max(3, 2))), w(320) + n + ni
   end
   local function e(ni, m)
      local n = w(384)
      return join(unit(ni, w(320), 1), seq(unit(ni, n, 1), join(flat(n, n, 3), tall(n, n, 3))),
         seq(unit(ni, w(448), 1), unit(w(448), n, 3, 1, 1), join(flat(n, n, 3), tall(n, n, 3))), mean(ni, w(192), m)),
         w(320) + 4 * n + w(192)
   end
   local net, ni = seq(unit(3, w(32), 3, 2), unit(w(32), w(32), 3), unit(w(32), w(64), 3, 1, 1), max(3, 2),
      unit(w(64), w(80), 1), unit(w(80), w(192), 3), max(3, 2)), w(192)
   local function add(block, ...)
      local m
      m, ni = block(ni, ...)
      net:add(m)
   end
   add(a, w(32)); add(a, w(64)); add(a, w(64)); add(b)
   add(c, w(128)); add(c, w(160)); add(c, w(160)); add(c, w(192)); add(d)
   add(e); add(e, tensorflow and max(3, 1, 1) or nil)
   append(net, avg(8))
   if not tensorflow then net:add(nn.Dropout(0.5)) end
   append(net, nn.View(-1):setNumInputDims(3), linear(ni, tensorflow and w(1008) or classes))
   if tensorflow then net:add(nn.SoftMax()) end
   return net
end

-- DenseNet-BC: growth 32, half of the channels in transitions.
local function densenet(counts)
   local growth = w(32)
   local ni = 2 * growth
   local net = seq(conv(3, ni, 7, 2, 3, false), norm(ni), relu(), max(3, 2, 1))
   for stage, count in ipairs(counts) do
      for _ = 1, count do
         local layer = seq(norm(ni), relu(), conv(ni, 4 * growth, 1, 1, 0, false), norm(4 * growth), relu(),
            conv(4 * growth, growth, 3, 1, 1, false))
         net:add(seq(concat(nn.Identity(), layer)))
         ni = ni + growth
      end
      append(net, norm(ni), relu())
      if stage < #counts then
         local no = math.floor(ni / 2)
         append(net, conv(ni, no, 1, 1, 0, false), avg(2, 2))
         ni = no
      end
   end
   return append(net, avg(7, 7), nn.Reshape(ni), linear(ni, classes))
end

-- SqueezeNet: its own sizes of 1.0 and 1.1, and that of imagenet-multiGPU.torch with bypasses.
local function fire(ni, s, e)
   return seq(conv(ni, s, 1), relu(), concat(seq(conv(s, e, 1), relu()), seq(conv(s, e, 3, 1, 1), relu())))
end
local function squeezenet(version)
   local net, ni = seq(), w(64)
   if version == 1.0 then ni = w(96) end
   append(net, conv(3, ni, version == 1.0 and 7 or 3, 2), relu(), max(3, 2):ceil())
   local poolings = version == 1.0 and {[3] = true, [7] = true} or {[2] = true, [4] = true}
   for at, row in ipairs{{16, 64}, {16, 64}, {32, 128}, {32, 128}, {48, 192}, {48, 192}, {64, 256}, {64, 256}} do
      net:add(fire(ni, w(row[1]), w(row[2])))
      ni = 2 * w(row[2])
      if poolings[at] then net:add(max(3, 2):ceil()) end
   end
   return append(net, nn.Dropout(), conv(ni, classes, 1), relu(), avg(13), nn.View(classes))
end
local function squeezenet_bypass()
   local function block(ni, s, e, bypass)
      local net = seq(conv(ni, w(s), 1), relu(), concat(conv(w(s), w(e), 1), conv(w(s), w(e), 3, 1, 1)), relu())
      return bypass and both(net, nn.Identity()) or net
   end
   return seq(conv(3, w(96), 7, 2), relu(), max(3, 2), block(w(96), 16, 64), block(2 * w(64), 16, 64, true),
      block(2 * w(64), 32, 128), max(3, 2), block(2 * w(128), 32, 128, true), block(2 * w(128), 48, 192),
      block(2 * w(192), 48, 192, true), block(2 * w(192), 64, 256), max(3, 2), block(2 * w(256), 64, 256, true),
      nn.Dropout(), conv(2 * w(256), classes, 1, 1, 1), relu(), avg(14), nn.View(classes), nn.LogSoftMax())
end

-- Network in Network, as published and with batch normalization.
local function nin(eps)
   local net = seq()
   local function block(ni, no, k, s, p, last)
      append(net, conv(ni, no, k, s, p))
      if eps then net:add(norm(no, eps)) end
      append(net, relu())
      for at = 1, 2 do
         net:add(conv(no, at == 2 and last or no, 1))
         if eps then net:add(norm(no, eps)) end
         net:add(relu())
      end
   end
   if eps then
      block(3, w(96), 11, 4, 5); net:add(max(3, 2, 1)); block(w(96), w(256), 5, 1, 2); net:add(max(3, 2, 1))
      block(w(256), w(384), 3, 1, 1); net:add(max(3, 2, 1)); block(w(384), w(1024), 3, 1, 1)
      append(net, avg(7), nn.View(-1):setNumInputDims(3))
      return seq(net, linear(w(1024), classes), nn.LogSoftMax())
   end
   block(3, w(96), 11, 4, 0); net:add(max(3, 2):ceil()); block(w(96), w(256), 5, 1, 2); net:add(max(3, 2):ceil())
   block(w(256), w(384), 3, 1, 1); append(net, max(3, 2):ceil(), nn.Dropout(0.5)); block(w(384), w(1024), 3, 1, 1, classes)
   return append(net, avg(6), nn.View(-1):setNumInputDims(3), nn.SoftMax())
end

local V = {[11] = {1, 1, 2, 2, 2}, [13] = {2, 2, 2, 2, 2}, [16] = {2, 2, 3, 3, 3}, [19] = {2, 2, 4, 4, 4}}
local IMAGES = {3, 224}
local MODELS = {
   {"resnet18", function() return resnet(basic, {2, 2, 2, 2}) end, IMAGES},
   {"resnet34", function() return resnet(basic, {3, 4, 6, 3}) end, IMAGES},
   {"resnet50", function() return resnet(bottleneck, {3, 4, 6, 3}) end, IMAGES},
   {"resnet101", function() return resnet(bottleneck, {3, 4, 23, 3}) end},
   {"resnet152", function() return resnet(bottleneck, {3, 8, 36, 3}) end},
   {"resnet200", function() return resnet(pre(true), {3, 24, 36, 3}, true) end},
   {"preresnet18", function() return resnet(pre(false), {2, 2, 2, 2}, true) end, IMAGES},
   {"preresnet34", function() return resnet(pre(false), {3, 4, 6, 3}, true) end},
   {"preresnet50", function() return resnet(pre(true), {3, 4, 6, 3}, true) end, IMAGES},
   {"preresnet101", function() return resnet(pre(true), {3, 4, 23, 3}, true) end},
   {"preresnet152", function() return resnet(pre(true), {3, 8, 36, 3}, true) end},
   {"vgg11", function() return vgg(V[11], nil, threshold) end}, {"vgg13", function() return vgg(V[13]) end},
   {"vgg16", function() return vgg(V[16]) end}, {"vgg19", function() return vgg(V[19]) end},
   {"vgg11_bn", function() return vgg(V[11], 1e-5) end}, {"vgg13_bn", function() return vgg(V[13], 1e-5) end},
   {"vgg16_bn", function() return vgg(V[16], 1e-3) end}, {"vgg19_bn", function() return vgg(V[19], 1e-5) end},
   {"vgg16_caffe", function() return vgg_caffe(V[16]) end}, {"vgg19_caffe", function() return vgg_caffe(V[19]) end},
   {"alexnet_owt", alexnet_owt, IMAGES}, {"alexnet_columns", alexnet_columns, IMAGES},
   {"alexnet_groups", alexnet_groups, {3, 227}},
   {"googlenet", function() return googlenet(nil, 5) end, IMAGES},
   {"googlenet_bn", function() return googlenet(conv_norm(1e-3), 3) end, IMAGES},
   {"googlenet_multi", googlenet_multi, IMAGES}, {"googlenet_multi_bn", function() return googlenet_multi(1e-3) end},
   {"inception_v3", function() return inception_v3(false) end, {3, 299}},
   {"inception_v3_tf", function() return inception_v3(true) end, {3, 299}},
   {"densenet121", function() return densenet{6, 12, 24, 16} end, IMAGES},
   {"densenet169", function() return densenet{6, 12, 32, 32} end},
   {"squeezenet1_0", function() return squeezenet(1.0) end, IMAGES},
   {"squeezenet1_1", function() return squeezenet(1.1) end, IMAGES},
   {"squeezenet_bypass", squeezenet_bypass, IMAGES},
   {"nin", nin, IMAGES}, {"nin_bn", function() return nin(1e-3) end, IMAGES}}

for _, row in ipairs(MODELS) do
   local name, build, size = unpack(row)
   if next(wanted) == nil or wanted[name] then
      torch.manualSeed(25)
      storage, stretches, used, drawn = torch.FloatStorage(), {}, 0, 0
      local net = build()
      net:evaluate()
      net:clearState()
      torch.save(folder .. "/" .. name .. ".t7", net)
      print(name, used)
      if size then
         local few = torch.randn(size[2] * 8 + 300):storage()
         local input = torch.FloatTensor(
            few, 1, torch.LongStorage{2, size[1], size[2], size[2]}, torch.LongStorage{131, 47, 5, 3})
         local ok, output = pcall(net.forward, net, input)
         print("", ok and table.concat(output:size():totable(), "x") or output, ok and output:std())
         if ok then torch.save(folder .. "/" .. name .. ".io.t7", {input = input, output = output:clone()}) end
      end
      collectgarbage()
   end
end
