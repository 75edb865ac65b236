package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"weft"
	"weft/key"
	"weft/lab"
	"weft/lab/netns"
)

// OverlayOptions say how much is measured.
type OverlayOptions struct {
	Binary  string // path of weft
	Out     io.Writer
	Rounds  int           // of throughput and RTT; the subjects alternate within each
	Length  time.Duration // of one throughput run
	Echoes  int           // of one RTT run
	Joins   int           // of fresh nodes behind NATs
	Logs    string        // directory for the logs of what is started; "" keeps none
	Version string
}

// The subjects.
const (
	bare       = "bare link"
	plain      = "wireguard-go"
	direct     = "weft direct"
	udpRelay   = "weft udp relay"
	streamPath = "weft stream relay"
	nat        = "weft behind two NATs"
)

// The measures.
const (
	throughput = "TCP, one stream"
	rtt        = "RTT, idle"
	toDirect   = "relayed to direct"
	toFirst    = "join to first packet"
)

// overlayGoals are what the main job has to reach.
var overlayGoals = []Goal{
	{Name: "direct beside plain wireguard-go, TCP", Measure: throughput, Subject: direct, Over: plain, Least: 0.95},
	{Name: "direct beside plain wireguard-go, RTT", Measure: rtt, Subject: direct, Over: plain, Most: 1.1},
	{Name: "UDP relay beside direct, TCP", Measure: throughput, Subject: udpRelay, Over: direct, Least: 0.5},
	{Name: "stream relay beside direct, TCP", Measure: throughput, Subject: streamPath, Over: direct, Least: 0.3},
	{Name: "relayed to direct, s", Measure: toDirect, Subject: nat, Most: 1},
	{Name: "join to first packet, s", Measure: toFirst, Subject: nat, Most: 2},
}

// overlayRun is one benchmark under way.
type overlayRun struct {
	OverlayOptions
	report *Report
	began  time.Time
	a, b   *netns.Host
	nodeA  *lab.Node
	peerB  netip.Addr // b's overlay address
}

// Overlay measures weft's paths beside plain wireguard-go and the bare link, and joins behind NATs.
func Overlay(ctx context.Context, o OverlayOptions) (*Report, error) {
	if err := netns.Available(); err != nil {
		return nil, fmt.Errorf("the benchmark needs network namespaces: %w", err)
	}
	r := &overlayRun{OverlayOptions: o, began: time.Now()}
	r.report = &Report{Schema: weft.SchemaVersion, Name: "overlay", Version: o.Version, Started: r.began, Machine: machine()}
	if err := r.tunnels(ctx); err != nil {
		return nil, err
	}
	if err := r.joins(ctx); err != nil {
		return nil, err
	}
	r.report.Seconds = time.Since(r.began).Seconds()
	r.report.Judge(overlayGoals)
	return r.report, nil
}

func (r *overlayRun) say(format string, args ...any) {
	fmt.Fprintf(r.Out, "%6.1f s  %s\n", time.Since(r.began).Seconds(), fmt.Sprintf(format, args...))
}

func (r *overlayRun) lab(ctx context.Context) (*netns.Lab, error) {
	var opts []netns.Option
	if r.Logs != "" {
		opts = append(opts, netns.KeepLogs(r.Logs))
	}
	return netns.New(ctx, "wbench", opts...)
}

// tunnels measures throughput and RTT between two hosts of one network.
func (r *overlayRun) tunnels(ctx context.Context) (err error) {
	l, err := r.lab(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	hosts := map[string]*netns.Host{}
	for _, name := range []string{"srv", "a", "b"} {
		if hosts[name], err = l.AddHost(name); err != nil {
			return err
		}
	}
	r.a, r.b = hosts["a"], hosts["b"]
	r.say("two hosts and a server on one network; starting weft and plain wireguard-go")
	if err := r.startPlain(ctx, l); err != nil {
		return err
	}
	fleet := lab.Fleet{Binary: r.Binary, Dir: l.Dir()}
	server, err := fleet.StartServer(ctx, hosts["srv"])
	if err != nil {
		return err
	}
	token, err := server.Token(ctx, "--reusable")
	if err != nil {
		return err
	}
	if r.nodeA, err = fleet.StartNode(ctx, r.a, "node-a", token); err != nil {
		return err
	}
	nodeB, err := fleet.StartNode(ctx, r.b, "node-b", token)
	if err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if _, err := r.nodeA.Up(wait); err != nil {
		return err
	}
	up, err := nodeB.Up(wait)
	if err != nil {
		return err
	}
	r.peerB = up.Self.Addrs[0]
	if _, err := r.nodeA.Reaches(wait, "node-b", weft.Direct); err != nil {
		return err
	}
	iperf, err := r.b.Start(r.b.Command(ctx, "iperf3", "--server", "--forceflush"))
	if err != nil {
		return fmt.Errorf("iperf3 is needed (apt-get install iperf3): %w", err)
	}
	if err := netns.WaitFor(wait, "iperf3 to listen", func() error {
		if err := iperf.Err(); err != nil {
			return err
		}
		c, err := r.a.DialContext(wait, "tcp", netip.AddrPortFrom(r.b.Addr(), 5201).String())
		if err == nil {
			c.Close()
		}
		return err
	}); err != nil {
		return err
	}
	for round := 1; round <= r.Rounds; round++ {
		if err := r.round(ctx, round); err != nil {
			return err
		}
	}
	return nil
}

// plainInside are the addresses inside the plain tunnel.
var plainInside = [2]netip.Addr{netip.MustParseAddr("10.99.0.1"), netip.MustParseAddr("10.99.0.2")}

func (r *overlayRun) startPlain(ctx context.Context, l *netns.Lab) error {
	const port = 51900
	keys := [2]key.NodePrivate{key.NewPrivate[key.Node](), key.NewPrivate[key.Node]()}
	for i, h := range []*netns.Host{r.a, r.b} {
		other := []*netns.Host{r.b, r.a}[i]
		cmd := h.Command(ctx, r.Binary, "bench", "plain", "--interface", "plain0", "--port", strconv.Itoa(port),
			"--endpoint", netip.AddrPortFrom(other.Addr(), port).String(),
			"--address", plainInside[i].String(), "--peer-address", plainInside[1-i].String())
		cmd.Stdin = strings.NewReader(keys[i].Reveal() + "\n" + keys[1-i].Public().String() + "\n")
		p, err := h.Start(cmd)
		if err != nil {
			return err
		}
		wait, cancel := context.WithTimeout(ctx, 10*time.Second)
		err = netns.WaitFor(wait, "plain wireguard-go", func() error {
			if err := p.Err(); err != nil {
				return err
			}
			if !strings.Contains(p.Log(), "ready") {
				return errors.New("it is not ready")
			}
			return nil
		})
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}

// round measures every subject once.
func (r *overlayRun) round(ctx context.Context, round int) error {
	b := r.b.Addr()
	steps := []struct {
		subject string
		target  netip.Addr
		method  weft.Method
		block   string // nftables match of what a's host drops meanwhile
	}{
		{bare, b, weft.NoMethod, ""},
		{plain, plainInside[1], weft.NoMethod, ""},
		{direct, r.peerB, weft.Direct, ""},
		{udpRelay, r.peerB, weft.RelayUDP, "ip daddr " + b.String() + " udp dport != 51900"},
		{streamPath, r.peerB, weft.RelayStream, "meta l4proto udp udp dport != 51900"},
	}
	for _, s := range steps {
		if s.method != weft.NoMethod {
			if err := r.force(ctx, s.method, s.block); err != nil {
				return err
			}
		}
		echo, err := r.ping(ctx, s.target)
		if err != nil {
			return fmt.Errorf("%s: %w", s.subject, err)
		}
		bits, err := r.iperf(ctx, s.target)
		if err != nil {
			return fmt.Errorf("%s: %w", s.subject, err)
		}
		if s.method != weft.NoMethod { // the path must have been the one meant to the end
			if p, err := r.nodeA.Peer(ctx, "node-b"); err != nil {
				return err
			} else if p.Method != s.method {
				return fmt.Errorf("%s: the path changed to %s meanwhile: %s", s.subject, p.Method, p.Reason)
			}
		}
		r.report.Add(s.subject, throughput, "Mbit/s", round, bits/1e6)
		r.report.Add(s.subject, rtt, "ms", round, echo)
		r.say("round %d of %d: %-18s %6.0f Mbit/s, %.3f ms", round, r.Rounds, s.subject, bits/1e6, echo)
	}
	return r.force(ctx, weft.Direct, "")
}

// force makes a's host drop what matches, and waits until the path is the one meant.
func (r *overlayRun) force(ctx context.Context, m weft.Method, block string) error {
	rules := "table inet wbench\ndelete table inet wbench\n"
	if block != "" {
		rules += "table inet wbench {\nchain out {\ntype filter hook output priority 0\n" + block + " drop\n}\n}\n"
	}
	cmd := r.a.Command(ctx, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(rules)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("nft: %w: %s", err, out)
	}
	wait, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	// Both ends have to have moved: each chooses for itself. Traffic makes them look.
	return netns.WaitFor(wait, "the path to be "+m.String(), func() error {
		if _, err := r.nodeA.Ping(wait, "node-b", time.Second); err != nil {
			return err
		}
		r.a.Run(wait, "ping", "-q", "-c", "5", "-i", "0.05", "-W", "1", r.peerB.String())
		p, err := r.nodeA.Peer(wait, "node-b")
		if err == nil && p.Method != m {
			err = fmt.Errorf("it is %s: %s", p.Method, p.Reason)
		}
		return err
	})
}

var pingRTT = regexp.MustCompile(`= [\d.]+/([\d.]+)/`)

// ping measures the mean RTT in milliseconds.
func (r *overlayRun) ping(ctx context.Context, to netip.Addr) (float64, error) {
	if out, err := r.a.Run(ctx, "ping", "-q", "-c", "5", "-i", "0.02", to.String()); err != nil {
		return 0, fmt.Errorf("ping: %w: %s", err, out) // not counted: it wakes the path
	}
	out, err := r.a.Run(ctx, "ping", "-q", "-c", strconv.Itoa(r.Echoes), "-i", "0.01", to.String())
	if err != nil {
		return 0, fmt.Errorf("ping: %w", err)
	}
	m := pingRTT.FindStringSubmatch(out)
	if m == nil {
		return 0, fmt.Errorf("ping printed no RTT: %q", out)
	}
	return strconv.ParseFloat(m[1], 64)
}

// iperf measures what arrives, in bit/s.
func (r *overlayRun) iperf(ctx context.Context, to netip.Addr) (float64, error) {
	out, err := r.a.Run(ctx, "iperf3", "--client", to.String(), "--json", "--time",
		strconv.Itoa(int(r.Length.Seconds())), "--omit", "1")
	if err != nil {
		return 0, fmt.Errorf("iperf3: %w", err)
	}
	var doc struct {
		Error string
		End   struct {
			Received struct {
				Bits float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		}
	}
	if err := json.Unmarshal([]byte(out), &doc); err != nil {
		return 0, fmt.Errorf("iperf3 printed no JSON: %w", err)
	}
	if doc.Error != "" || doc.End.Received.Bits == 0 {
		return 0, fmt.Errorf("iperf3: nothing received: %s", doc.Error)
	}
	return doc.End.Received.Bits, nil
}

// machine says on what was measured.
func machine() string {
	release, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	cpu := "unknown CPU"
	info, _ := os.ReadFile("/proc/cpuinfo")
	count := strings.Count(string(info), "\nprocessor") + 1
	for line := range strings.Lines(string(info)) {
		if name, ok := strings.CutPrefix(line, "model name"); ok {
			cpu = strings.Trim(name, "\t :\n")
			break
		}
	}
	return fmt.Sprintf("%d x %s, Linux %s", count, cpu, strings.TrimSpace(string(release)))
}
