-- Generic UDP encapsulation, variant 0, for tshark, which has no dissector of its own:
-- version (2 bits), control (1), length of extensions (5), protocol (8), flags (16).
local gue = Proto("gue", "Generic UDP Encapsulation")
gue.fields.version = ProtoField.uint8("gue.version", "Version", base.DEC, nil, 0xc0)
gue.fields.control = ProtoField.uint8("gue.control", "Control", base.DEC, nil, 0x20)
gue.fields.length = ProtoField.uint8("gue.length", "Length of extensions", base.DEC, nil, 0x1f)
gue.fields.protocol = ProtoField.uint8("gue.protocol", "Protocol")
gue.fields.flags = ProtoField.uint16("gue.flags", "Flags", base.HEX)

function gue.dissector(buffer, packet, tree)
    local branch = tree:add(gue, buffer(0, 4))
    branch:add(gue.fields.version, buffer(0, 1))
    branch:add(gue.fields.control, buffer(0, 1))
    branch:add(gue.fields.length, buffer(0, 1))
    branch:add(gue.fields.protocol, buffer(1, 1))
    branch:add(gue.fields.flags, buffer(2, 2))
    local extensions = buffer(0, 1):bitfield(3, 5) * 4
    DissectorTable.get("ip.proto"):try(buffer(1, 1):uint(), buffer(4 + extensions):tvb(), packet, tree)
end

DissectorTable.get("udp.port"):add(6080, gue)
