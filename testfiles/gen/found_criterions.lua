-- Criterions whose options were set or taken away after construction, and what Lua Torch computes with them.
--   th found_criterions.lua OUT.t7            (needs dpnn)
require 'nn' require 'dpnn' torch.setdefaulttensortype('torch.DoubleTensor') torch.manualSeed(7)
local list = {}
local x, y, classes = torch.rand(4, 3), torch.rand(4, 3), torch.LongTensor{1, 2, 3, 1}
local signs = torch.Tensor{1, -1, 1, -1}
local function save(name, c, input, target) list[#list + 1] = {name = name, module = c:clone(), input = input, target = target, output = c:forward(input, target)} end
local function without(c) c.sizeAverage = nil return c end
local c = nn.CrossEntropyCriterion() c.nll.sizeAverage = false save('cross entropy, nll set to a sum', c, x, classes)
c = nn.CrossEntropyCriterion(nil, false) c.nll.sizeAverage = true save('cross entropy, nll set to a mean', c, x, classes)
c = nn.CrossEntropyCriterion() c.sizeAverage = false save('cross entropy, set to a sum', c, x, classes)
c = nn.CrossEntropyCriterion() c.sizeAverage = false c:forward(x, classes) c.nll.sizeAverage = true save('cross entropy, nll set after a call', c, x, classes)
c = nn.CrossEntropyCriterion() c.oldSizeAverage = nil c.sizeAverage = nil c.nll.sizeAverage = false save('cross entropy of before 2017', c, x, classes)
save('MultiLabelSoftMargin without sizeAverage', without(nn.MultiLabelSoftMarginCriterion()), x, y:gt(.5):double())
save('HingeEmbedding without sizeAverage', without(nn.HingeEmbeddingCriterion()), x[{{}, 1}]:clone(), signs)
save('CosineEmbedding without sizeAverage', without(nn.CosineEmbeddingCriterion()), {x, y}, signs)
save('MarginRanking without sizeAverage', without(nn.MarginRankingCriterion()), {x[{{}, 1}]:clone(), y[{{}, 1}]:clone()}, signs)
save('DistanceRatio without sizeAverage', without(nn.DistanceRatioCriterion()), {x[{{}, 1}]:clone(), y[{{}, 1}]:clone()}, nil)
save('BinaryLogisticRegression without sizeAverage', without(nn.BinaryLogisticRegression()), x[{{}, {1}}]:clone(), signs:view(4, 1))
torch.save(arg[1], list)
