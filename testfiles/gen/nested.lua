-- nested.lua OUTFILE SEED: networks nested at random, with layers that work in place on what others read too, weights that
-- are shared, and nngraph graphs inside of containers. OUTFILE is one table: name → {module=, input=, output=}.
require 'torch'; require 'nn'; require 'nngraph'
torch.manualSeed(tonumber(arg[2])); math.randomseed(tonumber(arg[2])); torch.setdefaulttensortype('torch.FloatTensor')
local R=math.random
local pool={}
local function leaf()
  local k=R(13)
  if k<=3 then local l=nn.Linear(4,4); pool[#pool+1]=l; return l end
  if k==4 then return nn.ReLU(R(2)==1) end
  if k==5 then return nn.Tanh() end
  if k==6 then return nn.Identity() end
  if k==7 then return nn.MulConstant(0.5+R()) end
  if k==8 then return nn.Sigmoid() end
  if k==9 then return nn.Square() end
  if k==10 and #pool>0 then return pool[R(#pool)]:clone('weight','bias') end
  if k==11 then return nn.AddConstant(R()) end
  if k==12 then return nn.LeakyReLU(0.1,R(2)==1) end
  return nn.SoftMax()
end
local block
local function seq(d) local s=nn.Sequential(); for i=1,R(4) do s:add(block(d-1)) end; return s end
local function list(d,n) local c=nn.ConcatTable(); for i=1,n do c:add(block(d-1)) end; return c end
local function merge(n)
  local k=R(7)
  if k==1 then return nn.CAddTable() elseif k==2 then return nn.CMulTable() elseif k==3 then return nn.Sequential():add(nn.JoinTable(2)):add(nn.Linear(4*n,4))
  elseif k==4 then return nn.SelectTable(R(n)) elseif k==5 then return nn.Sequential():add(nn.JoinTable(1,1)):add(nn.Linear(4*n,4))
  elseif k==6 then return nn.Sequential():add(nn.NarrowTable(1,n>1 and n-1 or 1)):add(nn.CAddTable()) else return n==2 and nn.CMaxTable() or nn.CAddTable() end
end
local function graph(d)
  local x=nn.Identity()(); local nodes={x}
  for i=1,R(5) do
    local a=nodes[R(#nodes)]
    local b=nodes[R(#nodes)]; if R(3)==1 and a~=b then  nodes[#nodes+1]=(R(2)==1 and nn.CAddTable() or nn.CMulTable())({a,b})
    else nodes[#nodes+1]=block(d-1)(a) end
    if R(5)==1 then nodes[#nodes]:annotate{name=({'x','torch','gate','input','list','F','conv','train'})[R(8)]} end
  end
  -- nngraph wants all nodes to lead to an output: add all
  local all={}; for i=1,#nodes do all[i]=nodes[i] end
  local out=#all>1 and nn.CAddTable()(all) or nn.Tanh()(all[1])
  return nn.gModule({x},{out})
end
function block(d)
  if d<=0 then return leaf() end
  local k=R(9)
  if k<=2 then return leaf() elseif k==3 then return seq(d)
  elseif k==4 then local n=R(3); return nn.Sequential():add(list(d,n)):add(merge(n))
  elseif k==5 then local n=R(3); local c=nn.Concat(2); for i=1,n do c:add(block(d-1)) end; return nn.Sequential():add(c):add(nn.Linear(4*n,4))
  elseif k==6 then local n=R(3); local p=nn.ParallelTable(); for i=1,n do p:add(block(d-1)) end; return nn.Sequential():add(list(d,n)):add(p):add(merge(n))
  elseif k==7 then return graph(d)
  elseif k==8 then local n=R(3); return nn.Sequential():add(list(d,n)):add(nn.MapTable():add(block(d-1))):add(merge(n))
  else return nn.Sequential():add(nn.ConcatTable():add(list(d,2)):add(block(d-1))):add(nn.FlattenTable()):add(merge(3)) end
end
local function copy(v) if torch.isTensor(v) then return v:clone() end; local o={}; for k,e in pairs(v) do o[k]=copy(e) end; return o end
local cases={}
for i=1,25 do
  pool={}
  local m=block(4); if R(4)==1 then m=nn.Sequential():add(m):add(nn.ConcatTable():add(block(2)):add(nn.Identity())) end
  local x=torch.randn(3,4)
  m:evaluate()
  local ok,out=pcall(function() return copy(m:forward(x:clone())) end)
  if ok then m:clearState(); cases['c'..i]={module=m,input=x,output=out} else print(out:sub(1,150)) end
end
torch.save(arg[1],cases)
