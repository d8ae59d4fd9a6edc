-- Guideway's options in Geneve tunnels, and messages of agents (UDP 9475 and 9476), for Wireshark and tshark (docs/formats.md).
--
--     tshark -X lua_script:guideway.lua -r capture.pcap
--
-- as a user, since root is not given scripts from 4.4 on (else no option is shown, and
-- nothing is said); or copied into Wireshark's folder of personal plugins. A post-dissector: Wireshark's
-- own dissector shows the tunnel and lists the options, this one what ours say.

local guideway = Proto("guideway", "Guideway")
local CLASS, ROUTE, MULTIPATH = 0xff47, 0x81, 0x82
local FIXED_BYTES, MULTIPATH_FIXED_BYTES = 8, 12

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

fields.key = ProtoField.uint64("guideway.multipath.key", "Key (0: none)", base.HEX)
fields.flow_bucket = ProtoField.uint16("guideway.multipath.bucket", "Bucket of the five-tuple")
fields.is_v6_backend = ProtoField.bool("guideway.multipath.ipv6_address", "Address is IPv6", 8, nil, 0x80)
fields.ipv4_backend = ProtoField.ipv4("guideway.multipath.ipv4", "Backend that has that bucket")
fields.ipv6_backend = ProtoField.ipv6("guideway.multipath.ipv6", "Backend that has that bucket")

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

local function multipath(option, tree)
    local branch = tree:add(guideway, option, "Guideway Multipath TCP option")
    branch:add(fields.class, option(0, 2))
    branch:add(fields.type, option(2, 1))
    local address_bytes = option:len() - 4 - MULTIPATH_FIXED_BYTES
    if address_bytes ~= 4 and address_bytes ~= 16 then
        return branch:add_proto_expert_info(malformed)
    end
    branch:add(fields.key, option(4, 8))
    branch:add(fields.flow_bucket, option(12, 2))
    branch:add(fields.is_v6_backend, option(14, 1))
    branch:add(address_bytes == 16 and fields.ipv6_backend or fields.ipv4_backend, option(16, address_bytes))
    if option(14, 2):uint() ~= (address_bytes == 16 and 0x8000 or 0) then
        branch:add_proto_expert_info(malformed)
    end
end

local READERS = {[ROUTE] = route, [MULTIPATH] = multipath}

function guideway.dissector(_, _, tree)
    for _, info in ipairs({geneve_options()}) do
        local options, at = info.range, 0
        while at + 4 <= options:len() do
            local bytes = 4 + options(at + 3, 1):bitfield(3, 5) * 4
            if at + bytes > options:len() then
                break
            end
            local read = READERS[options(at + 2, 1):uint()]
            if options(at, 2):uint() == CLASS and read then
                read(options(at, bytes), tree)
            end
            at = at + bytes
        end
    end
end

register_postdissector(guideway)

-- Datagrams between agents and controllers, among agents, and among controllers.

local messages = Proto("guideway_agent", "Guideway agent message")
local PORT, AGENTS_PORT, PEERS_PORT, VERSION = 9475, 9476, 9477, 1
local MESSAGE_FIXED_BYTES, MAC_BYTES = 49, 16

local header = messages.fields
header.version = ProtoField.uint8("guideway_agent.version", "Version")
header.kind = ProtoField.uint8("guideway_agent.kind", "Kind", base.DEC, {[1] = "state", [2] = "answer", [3] = "rules", [4] = "answer to rules", [5] = "peer's state", [6] = "answer to a peer"})
header.part = ProtoField.uint8("guideway_agent.part", "Part")
header.parts = ProtoField.uint8("guideway_agent.parts", "Parts")
header.boot = ProtoField.uint64("guideway_agent.boot", "Agent's boot", base.HEX)
header.nonce = ProtoField.bytes("guideway_agent.nonce", "Controller's nonce")
header.sequence = ProtoField.uint64("guideway_agent.sequence", "Sequence")
header.key_id = ProtoField.bytes("guideway_agent.key_id", "Key id")
header.agent = ProtoField.string("guideway_agent.agent", "Agent")
header.body = ProtoField.bytes("guideway_agent.body", "Body (protobuf)")
header.mac = ProtoField.bytes("guideway_agent.mac", "MAC")

local message_malformed = ProtoExpert.new("guideway_agent.malformed", "The message is malformed",
    expert.group.MALFORMED, expert.severity.ERROR)
messages.experts = {message_malformed}

function messages.dissector(bytes, info, tree)
    if bytes:len() < 4 or bytes(0, 4):string() ~= "GWAG" then
        return 0
    end
    info.cols.protocol = "GWAG"
    local branch = tree:add(messages, bytes())
    if bytes:len() < MESSAGE_FIXED_BYTES + MAC_BYTES or bytes(4, 1):uint() ~= VERSION then
        branch:add_proto_expert_info(message_malformed)
        return bytes:len()
    end
    branch:add(header.version, bytes(4, 1))
    branch:add(header.kind, bytes(5, 1))
    branch:add(header.part, bytes(6, 1))
    branch:add(header.parts, bytes(7, 1))
    branch:add(header.boot, bytes(8, 8))
    branch:add(header.nonce, bytes(16, 16))
    branch:add(header.sequence, bytes(32, 8))
    branch:add(header.key_id, bytes(40, 8))
    local name_bytes = bytes(48, 1):uint()
    local body_bytes = bytes:len() - MESSAGE_FIXED_BYTES - name_bytes - MAC_BYTES
    if name_bytes == 0 or body_bytes < 0 or bytes(6, 1):uint() >= bytes(7, 1):uint() then
        branch:add_proto_expert_info(message_malformed)
        return bytes:len()
    end
    branch:add(header.agent, bytes(MESSAGE_FIXED_BYTES, name_bytes))
    if body_bytes > 0 then
        branch:add(header.body, bytes(MESSAGE_FIXED_BYTES + name_bytes, body_bytes))
    end
    branch:add(header.mac, bytes(bytes:len() - MAC_BYTES, MAC_BYTES))
    return bytes:len()
end

DissectorTable.get("udp.port"):add(PORT, messages)
DissectorTable.get("udp.port"):add(AGENTS_PORT, messages)
DissectorTable.get("udp.port"):add(PEERS_PORT, messages)
