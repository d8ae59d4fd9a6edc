-- Guideway's options in Geneve tunnels, for Wireshark and tshark (docs/formats.md).
--
--     tshark -X lua_script:guideway.lua -r capture.pcap
--
-- or copied into Wireshark's folder of personal plugins. A post-dissector: Wireshark's
-- own dissector shows the tunnel and lists the options, this one what ours say.

local guideway = Proto("guideway", "Guideway")
local CLASS, ROUTE = 0xff47, 0x81
local FIXED_BYTES = 8

local fields = guideway.fields
fields.class = ProtoField.uint16("guideway.option.class", "Class", base.HEX)
fields.type = ProtoField.uint8("guideway.option.type", "Type", base.HEX)
fields.is_v6 = ProtoField.bool("guideway.route.ipv6_addresses", "Addresses are IPv6", 8, nil, 0x80)
fields.returns = ProtoField.bool("guideway.route.returns", "Returned to the first agent", 8, nil, 0x40)
fields.count = ProtoField.uint8("guideway.route.count", "Addresses", base.DEC, nil, 0x03)
fields.hop_limit = ProtoField.uint8("guideway.route.hop_limit", "Hop limit")
fields.bucket = ProtoField.uint16("guideway.route.bucket", "Bucket (65535: none)")
fields.generation = ProtoField.uint32("guideway.route.generation", "Generation, lower half")
fields.ipv4 = ProtoField.ipv4("guideway.route.ipv4", "Try next")
fields.ipv6 = ProtoField.ipv6("guideway.route.ipv6", "Try next")

local malformed = ProtoExpert.new("guideway.malformed", "The option is malformed",
    expert.group.MALFORMED, expert.severity.ERROR)
guideway.experts = {malformed}

local geneve_options = Field.new("geneve.options")

local function route(option, tree)
    local body_bytes = option:len() - 4
    local branch = tree:add(guideway, option, "Guideway route option")
    branch:add(fields.class, option(0, 2))
    branch:add(fields.type, option(2, 1))
    if body_bytes < FIXED_BYTES then
        return branch:add_proto_expert_info(malformed)
    end
    local flags = option(4, 1):uint()
    local address_bytes = flags >= 0x80 and 16 or 4
    branch:add(fields.is_v6, option(4, 1))
    branch:add(fields.returns, option(4, 1))
    branch:add(fields.count, option(4, 1))
    branch:add(fields.hop_limit, option(5, 1))
    branch:add(fields.bucket, option(6, 2))
    branch:add(fields.generation, option(8, 4))
    if option(4, 1):bitfield(2, 4) ~= 0 or body_bytes ~= FIXED_BYTES + flags % 4 * address_bytes then
        return branch:add_proto_expert_info(malformed)
    end
    local field = address_bytes == 16 and fields.ipv6 or fields.ipv4
    for at = 4 + FIXED_BYTES, option:len() - 1, address_bytes do
        branch:add(field, option(at, address_bytes))
    end
end

function guideway.dissector(_, _, tree)
    for _, info in ipairs({geneve_options()}) do
        local options, at = info.range, 0
        while at + 4 <= options:len() do
            local bytes = 4 + options(at + 3, 1):bitfield(3, 5) * 4
            if at + bytes > options:len() then
                break
            end
            if options(at, 2):uint() == CLASS and options(at + 2, 1):uint() == ROUTE then
                route(options(at, bytes), tree)
            end
            at = at + bytes
        end
    end
end

register_postdissector(guideway)
