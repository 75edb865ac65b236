package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"weft"
	"weft/lab"
	"weft/lab/netns"
	"weft/lab/vnet"
)

// maxBondLinks is how many links the benchmark's host has: what the largest case takes.
const maxBondLinks = 8

// A BondLink is a link of the host that has several, the same in both directions.
type BondLink struct {
	Mbit     float64 `json:"mbit"`
	RTTms    float64 `json:"rtt_ms"` // half of it in each direction
	JitterMS float64 `json:"jitter_ms,omitempty"`
	Loss     float64 `json:"loss,omitempty"` // 0 to 1
}

// String is short, and tells links apart.
func (l BondLink) String() string {
	s := fmt.Sprintf("%g/%g", l.Mbit, l.RTTms)
	if l.JitterMS > 0 {
		s += fmt.Sprintf("±%g", l.JitterMS)
	}
	if l.Loss > 0 {
		s += fmt.Sprintf(" %g%%", l.Loss*100)
	}
	return s
}

// QueueBytes is how much waits in front of the link at most, in each direction; what is more is dropped where it comes
// (tail drop). It is a tenth of a second, and at least 20 full packets, for whatever is measured on it.
func (l BondLink) QueueBytes() int { return max(int(l.Mbit*1e6/8/10), 30_000) }

func (l BondLink) config() vnet.LinkConfig {
	return vnet.LinkConfig{Rate: l.Mbit * 1e6, Delay: millis(l.RTTms / 2), Jitter: millis(l.JitterMS), Loss: l.Loss, Queue: l.QueueBytes()}
}

func millis(v float64) time.Duration { return time.Duration(v * float64(time.Millisecond)) }

// A bondWorld is an internet of its own: a server; a host b with one link that is never the narrowest; and a host a
// with many links, each behind a router of the laboratory's that has the link's rate, queue and delay in one place.
// What happens in one world is not felt in another, but for the processors.
type bondWorld struct {
	number  int
	net     *netns.Lab
	a, b    *netns.Host
	fleet   lab.Fleet
	token   string
	legs    []bondLeg
	used    int   // of the legs, by the unit that is on
	noMPTCP error // why connections over several links cannot be made here
	nodes   [2]*lab.Node
	addrs   [2]netip.Addr // inside
	pids    []int         // of the server
}

// A bondLeg is one of a's links.
type bondLeg struct {
	name   string
	addr   netip.Addr
	router *netns.Router
	spec   BondLink
}

// bondSysctls are the same in both hosts, whatever is measured: buffers that never limit a connection, and nothing
// remembered of connections before.
var bondSysctls = map[string]string{
	"net/ipv4/tcp_rmem":               "4096 131072 33554432",
	"net/ipv4/tcp_wmem":               "4096 16384 33554432",
	"net/ipv4/tcp_no_metrics_save":    "1",
	"net/ipv4/conf/all/rp_filter":     "0",
	"net/ipv4/conf/default/rp_filter": "0",
	"net/mptcp/enabled":               "1",
}

// newWorld is an internet with both hosts on it. Further links are added when they are needed: each costs the lab's wires time, used or not.
func (r *bondRun) newWorld(ctx context.Context, number int) (*bondWorld, error) {
	w, err := r.layOut(ctx, number, func(w *bondWorld) error { return w.addLeg(ctx) })
	if err == nil {
		w.noMPTCP = w.allowMPTCP(ctx)
	}
	return w, err
}

// layOut makes a world of a server, b, and a, which addA adds. It is gone with its lab.
func (r *bondRun) layOut(ctx context.Context, number int, addA func(*bondWorld) error) (w *bondWorld, err error) {
	var opts []netns.Option
	if r.Logs != "" {
		opts = append(opts, netns.KeepLogs(r.Logs))
	}
	w = &bondWorld{number: number}
	if w.net, err = netns.New(ctx, "wbond", opts...); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.net.Close())
		}
	}()
	w.fleet = lab.Fleet{Binary: r.Binary, Dir: w.net.Dir()}
	srv, err := w.net.AddHost("srv")
	if err != nil {
		return nil, err
	}
	if w.b, err = w.net.AddHost("b"); err != nil {
		return nil, err
	}
	if err := addA(w); err != nil {
		return nil, err
	}
	for _, h := range []*netns.Host{w.a, w.b} {
		if err := h.Do(func() error { return setSysctls(bondSysctls) }); err != nil {
			return nil, err
		}
		if err := setCongestion(h, r.congestion); err != nil {
			return nil, err
		}
	}
	server, err := w.fleet.StartServer(ctx, srv)
	if err != nil {
		return nil, err
	}
	w.pids = append(w.pids, server.Process.PID())
	w.token, err = server.Token(ctx, "--reusable")
	return w, err
}

// allowMPTCP lets connections between the hosts have one more path for each further link: endpoints are added with the links.
func (w *bondWorld) allowMPTCP(ctx context.Context) error {
	for _, h := range []*netns.Host{w.a, w.b} {
		if _, err := h.Run(ctx, "ip", "mptcp", "limits", "set", "subflow", "8", "add_addr_accepted", "8"); err != nil {
			return err
		}
	}
	return w.offer(ctx, w.legs[0])
}

// offer makes a link one of those that a's connections by MPTCP use.
func (w *bondWorld) offer(ctx context.Context, leg bondLeg) error {
	_, err := w.a.Run(ctx, "ip", "mptcp", "endpoint", "add", leg.addr.String(), "dev", leg.name, "subflow")
	return err
}

// setSysctls sets values of the namespace that the calling thread is in.
func setSysctls(values map[string]string) error {
	for key, value := range values {
		if err := os.WriteFile("/proc/sys/"+key, []byte(value), 0o644); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// addLeg adds a router, and a's link behind it: what goes by a link's address leaves by that link, for connections that
// are not weft's.
func (w *bondWorld) addLeg(ctx context.Context) error {
	i := len(w.legs)
	r, err := w.net.AddNATRouter(fmt.Sprintf("gw%d", i), vnet.NATConfig{Mapping: weft.NoNAT}, netns.WithLink(vnet.LinkConfig{}))
	if err != nil {
		return err
	}
	leg := bondLeg{name: fmt.Sprintf("eth%d", i), router: r}
	if i == 0 {
		if w.a, err = r.AddHost("a", netns.Alone()); err != nil {
			return err
		}
		leg.addr = w.a.Addr()
	} else {
		inside := r.Inside().Prefix()
		leg.addr = inside.Masked().Addr().Next().Next() // the first is the gateway's
		if err := r.LeadInto(w.a, leg.name); err != nil {
			return err
		}
		if err := ipBatch(ctx, w.a, "link set "+leg.name+" up",
			"addr add "+netip.PrefixFrom(leg.addr, inside.Bits()).String()+" dev "+leg.name); err != nil {
			return err
		}
	}
	// So the laboratory's gateway need not forward each packet.
	if err := ipBatch(ctx, w.b, "route add "+r.Inside().Prefix().Masked().String()+" via "+r.Addr().String()); err != nil {
		return err
	}
	w.legs = append(w.legs, leg)
	if err := ipBatch(ctx, w.a, fmt.Sprintf("rule add from %s lookup %d", leg.addr, tableOf(i))); err != nil || i == 0 {
		return err
	}
	if w.noMPTCP == nil {
		w.noMPTCP = w.offer(ctx, leg)
	}
	return nil
}

// tableOf is the number of the routing table of a link, and its metric in the main one.
func tableOf(i int) int { return 100 + i }

// ipBatch runs lines of ip(8) in a host.
func ipBatch(ctx context.Context, h *netns.Host, lines ...string) error {
	cmd := h.Command(ctx, "ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("ip: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

// upLines are what makes a link of a's usable, and what a DHCP client says when it is back.
func (w *bondWorld) upLines(i int) []string {
	leg := w.legs[i]
	via := "default via " + leg.router.Inside().Gateway().String() + " dev " + leg.name
	return []string{"link set " + leg.name + " up", fmt.Sprintf("route replace %s metric %d", via, tableOf(i)),
		fmt.Sprintf("route replace %s table %d", via, tableOf(i))}
}

// setLinks gives a these links and no others.
func (w *bondWorld) setLinks(ctx context.Context, links []BondLink) error {
	var lines []string
	for len(w.legs) < len(links) {
		if err := w.addLeg(ctx); err != nil {
			return err
		}
	}
	for i := range w.legs {
		if i >= len(links) {
			lines = append(lines, "link set "+w.legs[i].name+" down")
			continue
		}
		w.legs[i].spec = links[i]
		if err := errors.Join(w.legs[i].router.SetLink(links[i].config()), w.legs[i].router.SetCut(false, false)); err != nil {
			return err
		}
		lines = append(lines, w.upLines(i)...)
	}
	w.used = len(links)
	// The first link has the route that its host was given, with metric 0.
	if err := ipBatch(ctx, w.a, append([]string{"route flush default"}, lines...)...); err != nil {
		return err
	}
	return nil
}

// startNodes starts weft in both hosts, a with the links that it has now, and waits until every link has a way to b.
func (w *bondWorld) startNodes(ctx context.Context, u *bondUnit) error {
	for i, h := range []*netns.Host{w.a, w.b} {
		name := []string{"node-a", "node-b"}[i]
		var flags []string
		if i == 0 {
			for k := range w.used {
				flag := w.legs[k].name
				if k < len(u.metrics) {
					flag += fmt.Sprintf(":%d", u.metrics[k])
				}
				flags = append(flags, "--link", flag)
			}
		}
		var err error
		if w.nodes[i] == nil {
			w.nodes[i], err = w.fleet.StartNode(ctx, h, name, w.token, flags...)
		} else {
			err = w.nodes[i].Start(ctx, "", flags...)
		}
		if err != nil {
			return err
		}
	}
	// What is started lives as long as ctx; what is waited for must not take as long.
	wait, cancel := context.WithTimeout(ctx, 40*time.Second)
	defer cancel()
	for i, n := range w.nodes {
		s, err := n.Up(wait)
		if err != nil {
			return err
		}
		w.addrs[i] = s.Self.Addrs[0]
		if err := setBonding(wait, u.mode, n); err != nil {
			return err
		}
	}
	return w.waysWork(wait)
}

// waysWork waits until both ends reach each other directly, by every link of a's.
func (w *bondWorld) waysWork(ctx context.Context) error {
	if _, err := w.nodes[1].Reaches(ctx, "node-a", weft.Direct); err != nil {
		return err
	}
	if w.used < 2 {
		_, err := w.nodes[0].Reaches(ctx, "node-b", weft.Direct)
		return err
	}
	return netns.WaitFor(ctx, "a way by each link", func() error {
		e, err := w.nodes[0].Explain(ctx, "node-b")
		if err != nil {
			return err
		}
		valid := map[string]bool{}
		for _, x := range e.Ways {
			if _, by, ok := strings.Cut(x.Way, " by "); ok && strings.HasPrefix(x.Way, "direct") && x.State == "valid" {
				valid[by] = true
			}
		}
		if len(valid) < w.used {
			return fmt.Errorf("%d of %d links have one: %+v", len(valid), w.used, e.Ways)
		}
		return nil
	})
}

// stopNodes ends weft in both hosts.
func (w *bondWorld) stopNodes() (err error) {
	for _, n := range w.nodes {
		if n != nil {
			err = errors.Join(err, n.Process.Stop())
		}
	}
	return err
}

// prepare makes the world what a unit measures, and leaves it at rest.
func (w *bondWorld) prepare(ctx context.Context, u *bondUnit) error {
	if err := w.stopNodes(); err != nil {
		return err
	}
	if err := w.setLinks(ctx, u.links); err != nil {
		return err
	}
	if u.subject == mptcp && w.noMPTCP != nil {
		return fmt.Errorf("this kernel makes no connections over several links: %w", w.noMPTCP)
	}
	if !u.subject.isWeft() {
		return nil
	}
	return w.startNodes(ctx, u)
}
