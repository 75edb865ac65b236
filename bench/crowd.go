package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"weft"
	"weft/engine"
	"weft/host"
	"weft/key"
	"weft/wire"
)

// A crowd is one engine, the hub, with many peers, some of which are active: far ends in a process of their own, at the end of an interface, or on loopback. The hub's
// device is in memory, so that the engine's own work is all there is, and what each peer costs shows the
// more: there is no TCP and no kernel's interface beside it.
//
//	flows <-> hub's engine <-> UDP <-> interface (crowdTUN) or loopback <-> all far ends, by one thread
//
// There are as many flows, with as much under way, whether they are one peer's or fifty's.

// CrowdConfig is a crowd.
type CrowdConfig struct {
	Peers  int // configured
	Active int // that have flows
	Flows  int
	Length time.Duration // in each direction
	Binary string        // weft, which the far ends are started of; "": they are in this process, and what they cost is in all figures
	Wired  bool          // the far ends are at the end of an interface, for which one must be root; else on loopback
	EndsOn int           // the core on which they are, alone; negative: on any
}

// A CrowdResult is what a crowd gave, and what a hub with one peer gave beside it.
type CrowdResult struct {
	One        CrowdRates `json:"one_peer"`
	Crowd      CrowdRates `json:"crowd"`
	Configured float64    `json:"bytes_per_configured_peer"`
	// Session is what a peer takes beside that once it has been spoken with.
	Session float64 `json:"bytes_per_peer_spoken_with"`
}

// CrowdRates are of flows from the hub to its peers, and of those to the hub.
type CrowdRates struct {
	Out CrowdRate `json:"out"`
	In  CrowdRate `json:"in"`
}

// A CrowdRate is what flows in one direction gave, and what they took of the hub.
type CrowdRate struct {
	Bits float64 `json:"bits_per_second"`
	CPU  float64 `json:"hub_cpu_seconds_per_gb"` // of payload
	Busy float64 `json:"hub_cpu_seconds_per_second"`
	Lost int     `json:"super_packets_lost"`
}

func (r CrowdRate) say(name string) string {
	return fmt.Sprintf("%s %.0f Mbit/s, hub %.2f CPU s per GB, %.2f busy, %d lost", name, r.Bits/1e6, r.CPU, r.Busy, r.Lost)
}

const (
	crowdPeers  = 1000
	crowdActive = 50
)

// crowds measures the engine with one peer and with many.
func (r *overlayRun) crowds(ctx context.Context) error {
	s := &site{overlayRun: r} // without hosts: for its meter
	defer s.disturbances()
	// The far ends have a core, and the hub has all others: if it were woken where they run, it would be the kernel's placing of threads
	// that is measured.
	args := []string{r.Binary, "bench", "crowd"}
	if last := lastCPU(); last > 0 {
		args = append([]string{"taskset", "--cpu-list", "0-" + strconv.Itoa(last-1)}, append(args, "--ends-on", strconv.Itoa(last))...)
	} else {
		r.report.Note("There is one core: the hub shares it with its far ends")
	}
	if err := host.CheckTUN(); err == nil {
		args = append(args, "--wired")
	} else {
		r.report.Note("The far ends of the crowd are on loopback, where the hub does their receiving: %v", err)
	}
	for round := 1; round <= r.Rounds; round++ {
		var got CrowdResult
		err := s.undisturbed(crowd, func() error {
			cmd := exec.CommandContext(ctx, args[0], append(args[1:], "--peers", strconv.Itoa(crowdPeers), "--active", strconv.Itoa(crowdActive),
				"--flows", strconv.Itoa(crowdActive), "--length", r.Length.String())...)
			cmd.Stderr = os.Stderr
			out, err := cmd.Output()
			if err != nil {
				return err
			}
			return json.Unmarshal(out, &got)
		}, nil)
		if err != nil {
			return fmt.Errorf("%s: %w", crowd, err)
		}
		for _, x := range []struct {
			name string
			got  CrowdRates
		}{{onePeer, got.One}, {crowd, got.Crowd}} {
			r.report.Add(x.name, crowdOut, "Mbit/s", round, x.got.Out.Bits/1e6)
			r.report.Add(x.name, crowdOutCPU, "s", round, x.got.Out.CPU)
			r.report.Add(x.name, crowdIn, "Mbit/s", round, x.got.In.Bits/1e6)
			r.report.Add(x.name, crowdInCPU, "s", round, x.got.In.CPU)
			r.say("round %d: %-18s %s; %s", round, x.name, x.got.Out.say("out"), x.got.In.say("in"))
		}
		// One that has been spoken with and is idle again takes both.
		r.report.Add(crowd, crowdBytes, "KiB", round, (got.Configured+got.Session)/1024)
		r.say("round %d: %.0f bytes per configured peer, %.0f more per active one", round, got.Configured, got.Session)
	}
	return nil
}

// Crowd runs one, beside a hub with a single peer. The two take turns of a fraction of a second: the processors of a machine that is shared
// differ by more from one second to the next than the hubs from each other.
func Crowd(ctx context.Context, cfg CrowdConfig) (got CrowdResult, err error) {
	if cfg.Active < 1 || cfg.Peers < cfg.Active || cfg.Flows < cfg.Active || cfg.Flows > crowdFlows || cfg.Peers >= 1<<16 {
		return got, errors.New("there must be an active peer, no more of them than peers, and a flow for each")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		to   io.WriteCloser
		from io.Reader
		wait func() error
	)
	ends := 1 + cfg.Active
	if cfg.Binary == "" {
		to, from, wait = inCrowd(ctx, ends)
	} else if to, from, wait, err = startCrowdEnds(ctx, cfg.Binary, ends, cfg.EndsOn, cfg.Wired); err != nil {
		return got, err
	}
	defer func() { err = errors.Join(err, to.Close(), wait()) }()
	var hello crowdHello
	if err := json.NewDecoder(from).Decode(&hello); err != nil {
		return got, fmt.Errorf("the far ends of a crowd did not say who they are: %w", err)
	}
	var meet crowdMeet
	var hubs [crowdHubs]*crowdHub
	for i := range hubs {
		h := &crowdHub{number: i, configured: 1, active: 1, flows: cfg.Flows}
		if i > 0 {
			h.configured, h.active = cfg.Peers, cfg.Active
		}
		own := key.NewPrivate[key.Node]()
		h.device = newCrowdDevice(weft.NodeID(1+i), crowdFirst+weft.NodeID(i), cfg.Flows)
		if h.Engine, err = engine.New(engine.Config{Key: own, Self: h.device.hub, Device: h.device, Handler: deaf{}, Logger: slog.New(slog.DiscardHandler)}); err != nil {
			return got, err
		}
		defer h.Close()
		if err := h.Up(); err != nil {
			return got, err
		}
		for range h.active {
			meet.Hubs = append(meet.Hubs, own.Public())
		}
		hubs[i] = h
	}
	if err := json.NewEncoder(to).Encode(meet); err != nil {
		return got, err
	}
	// The one with one peer comes first: what a process takes when it first needs it, the other finds.
	for _, h := range hubs {
		if got.Configured, got.Session, err = h.remember(ctx, &hello); err != nil {
			return got, err
		}
	}
	for _, x := range []struct {
		heading heading
		rates   [crowdHubs]*CrowdRate
	}{{out, [...]*CrowdRate{&got.One.Out, &got.Crowd.Out}}, {in, [...]*CrowdRate{&got.One.In, &got.Crowd.In}}} {
		for first := true; hubs[0].took[x.heading] < cfg.Length; first = false {
			for _, h := range hubs {
				if err := h.turn(ctx, x.heading, first); err != nil {
					return got, err
				}
			}
		}
		for i, h := range hubs {
			if *x.rates[i], err = h.rate(x.heading); err != nil {
				return got, err
			}
		}
	}
	return got, nil
}

// A crowdHub is an engine of which the cost is measured.
type crowdHub struct {
	*engine.Engine
	device                    *crowdDevice
	number                    int // and its first peer's
	configured, active, flows int

	// Of all turns, by heading.
	bytes, lost [2]uint64
	took, spent [2]time.Duration
}

// remember tells the hub of its peers, has it meet the active ones, and says what memory that takes, in bytes for each.
func (h *crowdHub) remember(ctx context.Context, hello *crowdHello) (configured, session float64, err error) {
	peers := make([]engine.Peer, h.configured)
	for i := range peers {
		id, k := h.device.first+weft.NodeID(i), key.NewPrivate[key.Node]().Public()
		if i < h.active {
			k = hello.Keys[h.number+i]
		}
		peers[i] = engine.Peer{ID: id, Key: k, Allowed: crowdPrefixes(id)}
	}
	before, err := inUse(ctx)
	if err != nil {
		return 0, 0, err
	}
	if err := h.SetPeers(peers); err != nil {
		return 0, 0, err
	}
	const nobody = 9 // a port where nobody is (RFC 863)
	for i, p := range peers {
		at := crowdAt(hello.First, h.number+i, nobody)
		if i < h.active {
			at = crowdAt(hello.First, h.number+i, hello.Port)
		}
		h.Learn(p.ID, at)
		h.SetRoute(p.ID, weft.DirectVia(0, at))
	}
	after, err := inUse(ctx)
	if err != nil {
		return 0, 0, err
	}
	configured = (after - before) / float64(h.configured)
	// All to one: the hub's queues have been as long as they get.
	if err := h.meet(ctx, 0, 1); err != nil {
		return 0, 0, err
	}
	for _, x := range []heading{out, in} {
		h.begin(x)
		if err := pause(ctx, crowdPatience); err != nil {
			return 0, 0, err
		}
		if err := h.end(ctx, x); err != nil {
			return 0, 0, err
		}
	}
	if before, err = inUse(ctx); err != nil {
		return 0, 0, err
	}
	if err := h.meet(ctx, 1, h.active); err != nil {
		return 0, 0, err
	}
	if after, err = inUse(ctx); err != nil {
		return 0, 0, err
	}
	if h.active > 1 {
		session = (after - before) / float64(h.active-1)
	}
	return configured, session, nil
}

// begin has all flows go on.
func (h *crowdHub) begin(x heading) {
	h.device.heading.Store(int32(x))
	h.device.limit.Store(int64(h.flows))
	h.device.Wake()
}

// end holds all flows, and waits until what is under way has arrived or is lost.
func (h *crowdHub) end(ctx context.Context, x heading) error {
	h.device.limit.Store(0)
	for began := time.Now(); !h.device.quiet(x) && time.Since(began) < crowdPatience; {
		if err := pause(ctx, time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// meet has each of some active peers get a super-packet, one after the other; then there is silence.
func (h *crowdHub) meet(ctx context.Context, from, to int) error {
	const patience = 20 * time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	d := h.device
	d.active.Store(int64(to))
	d.heading.Store(int32(out))
	for i := from; i < to; i++ {
		f := &d.flows[out][i]
		before := f.got.Load()
		for d.limit.Store(int64(i + 1)); f.got.Load() == before; d.Wake() {
			if err := pause(ctx, time.Millisecond); err != nil {
				return fmt.Errorf("peer %d of %d was not met: %w", i+1, to, err)
			}
		}
	}
	return h.end(ctx, out)
}

const (
	// crowdSettling is what of a hub's turn does not count: caches are the other hub's in the beginning. crowdCounted is the rest: as long as
	// the period in which the hosts of virtual machines give them their share of a processor.
	crowdSettling, crowdCounted = 20 * time.Millisecond, 100 * time.Millisecond
)

// turn has all flows go on for a while. The first time it is to warm up, and does not count.
func (h *crowdHub) turn(ctx context.Context, x heading, first bool) error {
	d := h.device
	h.begin(x)
	settling, counted := crowdSettling, crowdCounted
	if first {
		settling, counted = warmUp/crowdHubs, 0
	}
	if err := pause(ctx, settling); err != nil {
		return err
	}
	if counted > 0 {
		var before, after syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &before); err != nil {
			return err
		}
		arrived, began, lost := d.arrived(x), time.Now(), d.lost.Load()
		if err := pause(ctx, counted); err != nil {
			return err
		}
		h.bytes[x] += d.arrived(x) - arrived
		h.took[x] += time.Since(began)
		h.lost[x] += d.lost.Load() - lost
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &after); err != nil {
			return err
		}
		h.spent[x] += time.Duration(after.Utime.Nano() - before.Utime.Nano() + after.Stime.Nano() - before.Stime.Nano())
	}
	return h.end(ctx, x)
}

// rate is what all turns gave.
func (h *crowdHub) rate(x heading) (CrowdRate, error) {
	bytes, spent, took := float64(h.bytes[x]), h.spent[x].Seconds(), h.took[x].Seconds()
	if bytes == 0 {
		return CrowdRate{}, errors.New("nothing arrived")
	}
	if n := h.device.strange.Load(); n > 0 {
		return CrowdRate{}, fmt.Errorf("%d packets came to a hub that are of no flow", n)
	}
	return CrowdRate{Bits: bytes * 8 / took, CPU: spent / (bytes / 1e9), Busy: spent / took, Lost: int(h.lost[x])}, nil
}

// smallestStack is a goroutine's, in bytes (stackMin, runtime/stack.go).
const smallestStack = 2 << 10

// inUse is what lies in memory after a collection, in bytes: the heap, and a stack for each goroutine. It does not count what the
// runtime has for stacks (StackInuse), which grow with a call and shrink with a collection: that is more than a few peers take.
// What is being worked on is given back soon, but on a busy machine not at once: the least counts that stays so for a while.
func inUse(ctx context.Context) (float64, error) {
	const same, apart = 5, 20 * time.Millisecond // readings
	least := math.Inf(1)
	for left := same; left > 0; left-- {
		runtime.GC()
		runtime.GC() // what pools have kept over the first
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		if now := float64(m.HeapAlloc + uint64(runtime.NumGoroutine())*smallestStack); now < least {
			least, left = now, same
		}
		if err := pause(ctx, apart); err != nil {
			return 0, err
		}
	}
	return least, nil
}

// deaf is a handler: a crowd has no mesh.
type deaf struct{}

func (deaf) HandleDatagram(weft.LinkID, netip.AddrPort, wire.Class, []byte) {}
func (deaf) HandleRelayed(weft.Via, weft.NodeID, []byte)                    {}
func (deaf) Active(weft.NodeID)                                             {}
func (deaf) Silent(weft.NodeID, weft.Via, string)                           {}
