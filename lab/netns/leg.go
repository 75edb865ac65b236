package netns

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"weft/lab/router"
	"weft/lab/vnet"
)

// A Leg is one more interface of a host: eth1, eth2 and so on, on a network of its own. Its way into the network is a
// line, whose two directions differ if they are to, which changes while it runs, breaks silently, or with a carrier
// that the host sees go.
//
//	host          wires                           the network's gateway
//	eth1 ==veth== line1 -bridge- tap1 ~~ wire ~~ portN -- its bridge
//	                             tbf ->            <- tbf
//
// What the line's rate is, tbf does, in the network and not in the host, so that the host feels it as it feels the
// internet: packets are late or lost, and no sender is held back. Delay, jitter, loss and black holes are the
// laboratory's own wire.
type Leg struct {
	host         *Host
	name         string
	on           *Network
	number       int // of the line, in the lab
	port         string
	addr4, addr6 netip.Addr
	out, in      vnet.LinkConfig
	metric       int // of its default route; 0: it has none
	station      *router.Cable
	bay          *patchbay
}

// wiresName is the namespace in which lines come out of hosts.
const wiresName = "wires"

// ringPackets is how many packets a TAP device holds for the patchbay: what 10 Gbit/s bring in 3 ms, for which an
// ordinary thread may keep it waiting.
const ringPackets = 4096

// AddSegment adds a network that leads nowhere: a cable between two offices, a switch of a provider's. Hosts come to it
// by [Host.AddLeg].
func (l *Lab) AddSegment(name string) (*Network, error) {
	n, err := l.addSegment(name)
	if err != nil {
		return nil, fmt.Errorf("adding the segment %s: %w", name, err)
	}
	return n, nil
}

func (l *Lab) addSegment(name string) (n *Network, err error) {
	n = &Network{lab: l}
	if n.gateway, err = l.namespace(name); err != nil {
		return nil, err
	}
	if n.prefix4, n.prefix6, err = l.prefixes(translated, true); err != nil {
		return nil, err
	}
	return n, n.raise()
}

// WithLine is how packets fare on the way out of a host's further leg and on the way in. Without it they fare well.
func WithLine(out, in vnet.LinkConfig) HostOption {
	return func(c *hostConfig) { c.line = &[2]vnet.LinkConfig{out, in} }
}

// WithDefaultRoute gives a leg a default route of this metric; that of the host's first leg has none, which comes first.
func WithDefaultRoute(metric int) HostOption { return func(c *hostConfig) { c.metric = metric } }

// AddLeg gives the host one more interface, on a network: the first such is eth1. Packets of a socket that is bound to
// the interface leave by it, and if [WithDefaultRoute], anywhere.
func (h *Host) AddLeg(on *Network, options ...HostOption) (*Leg, error) {
	config := hostConfig{line: &[2]vnet.LinkConfig{}}
	for _, o := range options {
		o(&config)
	}
	leg := &Leg{host: h, on: on, out: config.line[0], in: config.line[1], metric: config.metric}
	if err := leg.lay(config); err != nil {
		return nil, fmt.Errorf("adding a leg to %s: %w", h.Name, err)
	}
	h.legs = append(h.legs, leg)
	return leg, nil
}

// wires is the namespace of lines, made when it is first needed, and the number of the next line.
func (l *Lab) wires() (namespace string, number int, err error) {
	l.mu.Lock()
	l.lines++
	number = l.lines
	l.mu.Unlock()
	if number == 1 {
		namespace, err = l.namespace(wiresName)
		return namespace, number, err
	}
	return l.id + "-" + wiresName, number, nil
}

func (g *Leg) lay(config hostConfig) (err error) {
	h, n := g.host, g.on
	if config.pool > 1 || config.hops > 0 || config.link != nil {
		return errors.New("pools and hops are for routers, and a leg's link is its line: use WithLine")
	}
	if config.v6 && !n.prefix6.IsValid() {
		return fmt.Errorf("the network %v has no IPv6: make its router with it", n.prefix4)
	}
	if g.bay, err = h.lab.bay(); err != nil {
		return err
	}
	wires, number, err := h.lab.wires()
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	at, addrs, err := n.reserve(config)
	if err != nil {
		return err
	}
	g.number, g.name, g.port, g.addr4 = number, fmt.Sprintf("eth%d", len(h.legs)+1), fmt.Sprintf("port%d", at), addrs[0]
	if config.v6 {
		g.addr6 = nth(n.prefix6, at)
	}
	var fds [2]int
	outside, inside := delays(g.out), delays(g.in)
	g.station, err = router.NewCable(outside, seedOf(g.addr4), func(to router.Leg, frame []byte) { writeTAP(fds[to], frame) })
	if err == nil {
		err = g.station.SetLinks(outside, inside)
	}
	if err != nil {
		return err
	}
	if fds, err = taps(wires, g.tap(), n.gateway, g.port); err != nil {
		return err
	}
	if err := g.bay.add(g.station, fds); err != nil {
		return err
	}
	if err := batch(h.namespace, "link add "+g.name+" type veth peer name "+g.veth()+" netns "+wires); err != nil {
		return err
	}
	ring := " txqueuelen " + strconv.Itoa(ringPackets)
	bridge := "bridge" + strconv.Itoa(number)
	err = errors.Join(
		batch(wires,
			"link add "+bridge+" type bridge forward_delay 0",
			"link set "+bridge+" addrgenmode none up",
			"link set "+g.veth()+" addrgenmode none master "+bridge+" up",
			"link set "+g.tap()+ring+" addrgenmode none master "+bridge+" up"),
		batch(n.gateway, "link set "+g.port+ring+" addrgenmode none master "+lanLink+" up"),
		n.unbundle())
	if err != nil {
		return err
	}
	if err := g.setRates(vnet.LinkConfig{}, vnet.LinkConfig{}); err != nil {
		return err
	}
	n.legs = append(n.legs, g)
	return g.configure()
}

// configure gives the interface what it has when it is up.
func (g *Leg) configure() error {
	// Bundles of packets would pass the line as one, or be lost as one.
	lines := []string{"link set " + g.name + " gso_max_segs 1"}
	if !g.addr6.IsValid() {
		lines = append(lines, "link set "+g.name+" addrgenmode none")
	}
	lines = append(lines, "link set "+g.name+" up",
		"addr replace "+within(g.on.prefix4, g.addr4).String()+" dev "+g.name)
	metric := ""
	if g.metric > 0 {
		metric = " metric " + strconv.Itoa(g.metric)
		lines = append(lines, "route replace default via "+g.on.Gateway().String()+" dev "+g.name+metric)
	}
	if g.addr6.IsValid() {
		lines = append(lines, "addr replace "+within(g.on.prefix6, g.addr6).String()+" dev "+g.name+" nodad")
		if g.metric > 0 {
			lines = append(lines, "route replace ::/0 via "+nth(g.on.prefix6, 1).String()+" dev "+g.name+metric)
		}
	}
	return batch(g.host.namespace, lines...)
}

func (g *Leg) veth() string { return "line" + strconv.Itoa(g.number) }
func (g *Leg) tap() string  { return "tap" + strconv.Itoa(g.number) }

// wiresNamespace is where the line comes out of the host.
func (g *Leg) wiresNamespace() string { return g.host.lab.id + "-" + wiresName }

// Name is the interface's, in the host.
func (g *Leg) Name() string { return g.name }

// Network is where it leads.
func (g *Leg) Network() *Network { return g.on }

// Addr is its IPv4 address, and Addr6 its IPv6 address, the zero one where none was asked for.
func (g *Leg) Addr() netip.Addr  { return g.addr4 }
func (g *Leg) Addr6() netip.Addr { return g.addr6 }

// Links are how packets fare now, on the way out and on the way in.
func (g *Leg) Links() (out, in vnet.LinkConfig) { return g.out, g.in }

// SetLinks changes how packets fare, on the way out of the host and on the way in. What waits or is under way is not
// lost by it, unless the queue becomes too short for it.
func (g *Leg) SetLinks(out, in vnet.LinkConfig) error {
	wasOut, wasIn := g.out, g.in
	err := errors.Join(out.Check(), in.Check())
	if err == nil {
		g.out, g.in = out, in
		err = g.setRates(wasOut, wasIn)
	}
	if err == nil {
		err = errors.Join(g.bay.do(func() { err = g.station.SetLinks(delays(out), delays(in)) }), err)
	}
	if err != nil {
		return fmt.Errorf("changing the line of %s, %s: %w", g.host.Name, g.name, err)
	}
	return nil
}

// SetCut makes a black hole of the line, on the way out, on the way in, or both: nobody is told. SetCut(false, false)
// mends it.
// What is under way then arrives all the same.
func (g *Leg) SetCut(out, in bool) error {
	return g.bay.do(func() { g.station.SetCut(out, in) })
}

// LinkCounts are what the two directions have done so far. What tbf had no room for is not among it.
func (g *Leg) LinkCounts() (out, in router.WireCounts, err error) {
	err = g.bay.do(func() { out, in = g.station.LinkCounts() })
	return out, in, err
}

// SetCarrier plugs the cable into the host's interface, or pulls it out: the host's kernel sees it at once, and tells
// who asks (netlink).
func (g *Leg) SetCarrier(up bool) error {
	state := " down"
	if up {
		state = " up"
	}
	return batch(g.wiresNamespace(), "link set "+g.veth()+state)
}

// SetUp switches the interface on, with its addresses and routes, or off, as a person does.
func (g *Leg) SetUp(up bool) error {
	if up {
		return g.configure()
	}
	return batch(g.host.namespace, "link set "+g.name+" down")
}

// RouteBySource lets packets with the leg's source address leave by it, as hosts with several addresses do that know it
// (policy routing): for programs that bind sockets to addresses and not to interfaces, such as the kernel's MPTCP.
// On a network of [Lab.AddSegment] there is a gateway too, but it knows the way to nobody else.
func (g *Leg) RouteBySource() error {
	table := strconv.Itoa(1000 + g.number)
	lines := []string{
		"rule add from " + g.addr4.String() + " lookup " + table,
		"route replace " + g.on.prefix4.String() + " dev " + g.name + " table " + table,
		"route replace default via " + g.on.Gateway().String() + " dev " + g.name + " table " + table,
	}
	if err := batch(g.host.namespace, lines...); err != nil || !g.addr6.IsValid() {
		return err
	}
	return tool("rule add from "+g.addr6.String()+" lookup "+table+
		"\nroute replace "+g.on.prefix6.String()+" dev "+g.name+" table "+table+
		"\nroute replace default via "+nth(g.on.prefix6, 1).String()+" dev "+g.name+" table "+table+"\n",
		"ip", "-6", "-n", g.host.namespace, "-batch", "-")
}

// delays is a link without its rate, which tbf does.
func delays(l vnet.LinkConfig) vnet.LinkConfig {
	l.Rate, l.Queue = 0, 0
	return l
}

// setRates brings the line's rates about, where they are not what they were.
func (g *Leg) setRates(wasOut, wasIn vnet.LinkConfig) error {
	return errors.Join(
		setRate(g.wiresNamespace(), g.tap(), wasOut, g.out),
		setRate(g.on.gateway, g.port, wasIn, g.in))
}

// The burst of a tbf: what may leave at once after an idle time. With less than what comes in while a timer is late,
// the rate would not be reached; with more, packets would come in bundles that no line of that rate brings. A timer is
// late by some 0.1 ms, and by 1 ms where a thread of real time has the processor.
const (
	burstTime  = time.Millisecond
	burstLeast = 2 * 1518 // bytes: two of Ethernet's longest frames
)

// setRate gives a device's queue its rate. Where it has one, packets that wait stay.
func setRate(namespace, device string, was, now vnet.LinkConfig) error {
	if was.Rate == now.Rate && was.Queue == now.Queue {
		return nil
	}
	on := []string{"-n", namespace, "qdisc"}
	if now.Rate == 0 {
		return tool("", "tc", append(on, "del", "dev", device, "root")...)
	}
	return tool("", "tc", append(on, "replace", "dev", device, "root", "handle", "1:", "tbf",
		"rate", strconv.FormatUint(uint64(now.Rate), 10)+"bit",
		"burst", strconv.Itoa(burstOf(now)), "limit", strconv.Itoa(int(now.QueueBytes())))...)
}

func burstOf(l vnet.LinkConfig) int { return max(int(l.Rate/8*burstTime.Seconds()), burstLeast) }

// unbundle has everybody on the network send packets one by one, for lines lose, delay and pace packets. The caller
// holds the network's lock.
func (n *Network) unbundle() error {
	if n.single {
		return nil
	}
	n.single = true
	err := batch(n.gateway, "link set "+lanLink+" gso_max_segs 1")
	for _, h := range n.hosts {
		if h.link != "" && h.cable == nil {
			err = errors.Join(err, batch(h.namespace, "link set "+h.link+" gso_max_segs 1"))
		}
	}
	return err
}
