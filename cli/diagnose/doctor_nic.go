package diagnose

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/guideway/guideway/cli/commandline"
	"github.com/guideway/guideway/cli/machine"
	"github.com/guideway/guideway/cli/show"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
)

// nicReports say what interfaces and their drivers can. They have no addresses, so that they
// can be sent to anybody.
type nicReports struct {
	Kernel    string `json:"kernel"`
	Forwarder string `json:"forwarder"`
	// In the order of their names.
	Interfaces []nicReport `json:"interfaces"`
}

type nicReport struct {
	Interface string `json:"interface"`
	// As `ip link` has it: device, vlan, bond, bridge, veth, …
	Kind string `json:"kind"`
	// The bond or bridge that it belongs to, and what is made on top of it.
	Master string   `json:"master,omitempty"`
	Above  []string `json:"above"`
	MTU    int      `json:"mtu"`
	// Of the kernel's.
	ReceiveQueues  int `json:"receive_queues"`
	TransmitQueues int `json:"transmit_queues"`
	// What its driver's XDP can, by the kernel; or why that is not known.
	XDP        []string `json:"xdp"`
	XDPUnknown string   `json:"xdp_unknown,omitempty"`
	// How the forwarder has it; empty: it does not.
	Runs string `json:"runs,omitempty"`
	// What makes it slow or takes its packets.
	Limits []string `json:"limits"`
	// What `ethtool` prints, by its option.
	Ethtool map[string]string `json:"ethtool"`
}

// Names of features in the order of their bits in the kernel's include/uapi/linux/netdev.h.
var xdpFeatureNames = []string{"basic", "redirect", "ndo-xmit", "xsk-zerocopy", "hw-offload", "rx-sg", "ndo-xmit-sg"}

// Of that file, too.
const (
	netdevDevGet      = 1
	netdevIfindex     = 1
	netdevXDPFeatures = 3
)

// What says what a NIC is: its driver, channels, rings; features that are on.
var ethtoolOptions = []string{"-i", "-l", "-g", "-k"}

// reportNICs writes about these interfaces; about none named: about the forwarder's, or all
// if it does not answer.
func reportNICs(ctx context.Context, w io.Writer, format string, m machine.Machine, names []string) error {
	devices, problem := devicesOf(ctx, m)
	reports := nicReports{Kernel: kernelRelease(), Forwarder: problem, Interfaces: []nicReport{}}
	if len(names) == 0 {
		names = namesOf(devices)
	}
	for _, name := range names {
		report, err := nicReportOf(ctx, name)
		if err != nil {
			return err
		}
		var device *forwarderv1.Device
		if at := slices.IndexFunc(devices, func(d *forwarderv1.Device) bool { return d.Interface == name }); at >= 0 {
			device = devices[at]
			report.Runs = runsAs(device)
		}
		report.Limits = report.limits(device)
		reports.Interfaces = append(reports.Interfaces, report)
	}
	if format != "table" {
		return commandline.PrintValue(w, format, reports)
	}
	return reports.print(w)
}

// devicesOf the forwarder, and whether it answers.
func devicesOf(ctx context.Context, m machine.Machine) ([]*forwarderv1.Device, string) {
	var status *forwarderv1.GetStatusResponse
	err := m.AskForwarder(ctx, func(ctx context.Context, client forwarderv1.ForwarderClient) (err error) {
		status, err = client.GetStatus(ctx, &forwarderv1.GetStatusRequest{})
		return err
	})
	if err != nil {
		return nil, err.Error()
	}
	return status.GetDevices(), "answers, version " + status.GetVersion()
}

func namesOf(devices []*forwarderv1.Device) (names []string) {
	for _, d := range devices {
		names = append(names, d.Interface)
	}
	if len(names) > 0 {
		return names
	}
	interfaces, _ := net.Interfaces() // none: nothing to report on
	for _, one := range interfaces {
		if one.Flags&net.FlagLoopback == 0 {
			names = append(names, one.Name)
		}
	}
	slices.Sort(names)
	return names
}

func kernelRelease() string {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return err.Error()
	}
	return unix.ByteSliceToString(name.Release[:]) + " " + unix.ByteSliceToString(name.Machine[:])
}

func nicReportOf(ctx context.Context, name string) (nicReport, error) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return nicReport{}, fmt.Errorf("interface %s: %w: `ip link` lists those of this network namespace", name, err)
	}
	attributes := link.Attrs()
	report := nicReport{
		Interface: name, Kind: link.Type(), MTU: attributes.MTU,
		Above: uppersOf(name), ReceiveQueues: queuesOf(name, "rx"), TransmitQueues: queuesOf(name, "tx"),
		XDP: []string{}, Ethtool: map[string]string{},
	}
	if attributes.MasterIndex != 0 {
		if master, err := netlink.LinkByIndex(attributes.MasterIndex); err == nil {
			report.Master = master.Attrs().Name
		}
	}
	if features, err := xdpFeatures(attributes.Index); err != nil {
		report.XDPUnknown = err.Error()
	} else {
		report.XDP = features
	}
	for _, option := range ethtoolOptions {
		report.Ethtool[option] = ethtoolSays(ctx, option, name)
	}
	return report, nil
}

func queuesOf(device, direction string) int {
	queues, _ := filepath.Glob(filepath.Join("/sys/class/net", device, "queues", direction+"-*")) // the pattern is good
	return len(queues)
}

// uppersOf are the interfaces that are made on top of one.
func uppersOf(device string) []string {
	uppers, _ := filepath.Glob(filepath.Join("/sys/class/net", device, "upper_*")) // the pattern is good
	names := []string{}
	for _, upper := range uppers {
		names = append(names, strings.TrimPrefix(filepath.Base(upper), "upper_"))
	}
	return names
}

// xdpFeatures that the driver has by the kernel's word; an error: it has none to say.
func xdpFeatures(index int) ([]string, error) {
	family, err := netlink.GenlFamilyGet("netdev")
	if errors.Is(err, unix.ENOENT) {
		return nil, errors.New("this kernel does not say (Linux 6.3 and later do)")
	}
	if err != nil {
		return nil, fmt.Errorf("ask for the family netdev: %w", err)
	}
	request := nl.NewNetlinkRequest(int(family.ID), 0)
	// Trap: nl.Genlmsg leaves the header's reserved bytes as they are, and the kernel refuses others than 0.
	request.AddRawData(slices.Concat([]byte{netdevDevGet, 1, 0, 0}, nl.NewRtAttr(netdevIfindex, nl.Uint32Attr(uint32(index))).Serialize()))
	messages, err := request.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil {
		return nil, fmt.Errorf("ask for its XDP features: %w", err)
	}
	names := []string{}
	for _, message := range messages {
		attributes, err := nl.ParseRouteAttr(message[nl.SizeofGenlmsg:])
		if err != nil {
			return nil, fmt.Errorf("read its XDP features: %w", err)
		}
		for _, a := range attributes {
			if a.Attr.Type != netdevXDPFeatures {
				continue
			}
			bits := nl.NativeEndian().Uint64(a.Value)
			for i, name := range xdpFeatureNames {
				if bits&(1<<i) != 0 {
					names = append(names, name)
				}
			}
		}
	}
	return names, nil
}

// ethtoolSays, of features only which are on.
func ethtoolSays(ctx context.Context, option, device string) string {
	out, err := ethtool(ctx, option, device)
	if err != nil {
		return err.Error()
	}
	var kept bytes.Buffer
	for line := range bytes.Lines(out) {
		if option != "-k" || bytes.Contains(line, []byte(": on")) {
			kept.Write(line)
		}
	}
	return strings.TrimSpace(kept.String())
}

func runsAs(d *forwarderv1.Device) string {
	words := d.Driver
	if mode := show.ModeOf(d); mode != "" {
		words += ", " + mode
	}
	return fmt.Sprintf("%s, %d queues (%s)", words, d.Queues, d.DriverReason)
}

// How many queues of an interface the forwarder takes (docs/requirements.md).
const queuesMax = 64

// limits names what makes the interface slow or loses its packets; device is the
// forwarder's, if it has it.
func (r nicReport) limits(device *forwarderv1.Device) []string {
	limits := []string{}
	add := func(is bool, format string, values ...any) {
		if is {
			limits = append(limits, fmt.Sprintf(format, values...))
		}
	}
	has := func(feature string) bool { return r.XDPUnknown != "" || slices.Contains(r.XDP, feature) }
	add(r.Master != "", "it belongs to %s: routes lead there, so that is the interface to name in the config", r.Master)
	add(!has("basic"), "its driver has no native XDP: with af_xdp the kernel makes a buffer for each packet first (mode generic)")
	add(has("basic") && !has("redirect"), "its driver drops what XDP redirects, so nothing reaches af_xdp: write `driver: af_packet`")
	add(has("basic") && !has("xsk-zerocopy"), "its driver has no zero-copy in this kernel: the kernel copies each packet; the kernel flow cache sends most by itself (`guideway show cache`)")
	add(has("basic") && !has("ndo-xmit"), "its driver sends nothing for XDP programs as things are: the kernel flow cache cannot send by it")
	add(r.XDPUnknown == "" && has("xsk-zerocopy") && device != nil && device.Driver == "af_xdp" && !device.ZeroCopy,
		"its driver has zero-copy, and the forwarder got none: its log says why (journalctl -u guideway-forwarder)")
	add(r.ReceiveQueues > queuesMax, "it has %d receive queues, and the forwarder takes %d: ethtool -L %s combined %d", r.ReceiveQueues, queuesMax, r.Interface, queuesMax)
	add(r.MTU > packetBytesMax, "its MTU is %d, and packets longer than %d bytes are dropped", r.MTU, packetBytesMax)
	add(strings.Contains(r.Ethtool["-k"], lroIsOn), "it joins packets before we get them: ethtool -K %s lro off", r.Interface)
	return limits
}

func (r nicReports) print(w io.Writer) error {
	text := &strings.Builder{}
	fmt.Fprintf(text, "Linux %s\nforwarder: %s\n", r.Kernel, r.Forwarder)
	for _, one := range r.Interfaces {
		fmt.Fprintf(text, "\n%s: %s", one.Interface, one.Kind)
		if len(one.Above) > 0 {
			fmt.Fprintf(text, " below %s", strings.Join(one.Above, ", "))
		}
		fmt.Fprintf(text, ", MTU %d, %d receive and %d transmit queues\n", one.MTU, one.ReceiveQueues, one.TransmitQueues)
		xdp := strings.Join(one.XDP, ", ")
		switch {
		case one.XDPUnknown != "":
			xdp = "not known: " + one.XDPUnknown
		case xdp == "":
			xdp = "none"
		}
		fmt.Fprintf(text, "  XDP: %s\n", xdp)
		if one.Runs != "" {
			fmt.Fprintf(text, "  runs as: %s\n", one.Runs)
		}
		for _, limit := range one.Limits {
			fmt.Fprintf(text, "  limit: %s\n", limit)
		}
		for _, option := range ethtoolOptions {
			fmt.Fprintf(text, "  ethtool %s\n    %s\n", option, strings.ReplaceAll(one.Ethtool[option], "\n", "\n    "))
		}
	}
	fmt.Fprint(text, "\nNo addresses are in it. With it a report on an interface can be answered: docs/versions.md says where.\n")
	_, err := io.WriteString(w, text.String())
	return err
}
