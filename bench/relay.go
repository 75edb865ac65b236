package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"weft"
)

// RelayOptions say how relays alone are measured.
type RelayOptions struct {
	Binary  string // path of weft
	Derper  string // path of derper; "" has it built, and kept in Dir
	Dir     string // for what is built
	Out     io.Writer
	Rounds  int           // in each of which every subject is measured
	Flows   int           // at once, each from a node of its own to another
	Length  time.Duration // of one run
	Only    []string      // subjects; nil for all
	Version string
}

// The subjects.
const (
	relayDerper  = "derper"
	relayUDP     = "weft udp relay"
	relaySingles = "weft udp relay without runs" // what senders without segmentation offload see
	relayStream  = "weft stream relay"
)

// How a relay is measured besides: on part of a core, and there with far more offered than it can take.
const (
	narrow  = ", narrow"
	flooded = ", narrow and flooded"
)

// The measures. A GB is 10^9 bytes of datagrams that arrived, without what carried them.
const (
	relayGoodput = "goodput of a relay"
	relayOffered = "offered to a relay"
	relayCPU     = "CPU of a relay"
	relayBusy    = "cores that a relay kept busy"
	relayMemory  = "memory of a relay"
)

// goals are what the relay has to reach. That far more is offered than it can forward may cost it a part, since it is
// the relay's core that drops what does not fit in a socket, and that does the work of the senders' TCP on loopback.
// derper keeps a twentieth.
func (r *relayRun) goals() []Goal {
	var goals []Goal
	for _, s := range []string{relayUDP, relaySingles, relayStream} {
		if !r.wants(s) {
			continue
		}
		goals = append(goals,
			Goal{Name: s + " beside derper, CPU per GB", Measure: relayCPU, Subject: s, Over: relayDerper, Most: 0.5},
			Goal{Name: s + ", flooded beside not, goodput", Measure: relayGoodput, Subject: s + flooded, Over: s + narrow, Least: 0.7},
			Goal{Name: s + ", flooded beside not, CPU per GB", Measure: relayCPU, Subject: s + flooded, Over: s + narrow, Most: 1.5})
	}
	return goals
}

// relayRun is one benchmark under way.
type relayRun struct {
	RelayOptions
	report *Report
	began  time.Time
	dir    string // temporary
}

// relaySubject is a relay and how flows go through it.
type relaySubject struct {
	name  string
	start func(ctx context.Context, narrow bool) (*relayProcess, error)
	open  func(ctx context.Context, p *relayProcess, i int, f *flow) (sender, error)
}

func (r *relayRun) subjects() []relaySubject {
	return []relaySubject{
		{relayDerper, r.startDerper, func(ctx context.Context, p *relayProcess, _ int, f *flow) (sender, error) {
			return derpFlow(ctx, p.addr, f)
		}},
		{relayUDP, r.startWeft, func(ctx context.Context, p *relayProcess, i int, f *flow) (sender, error) {
			return p.network.udp(ctx, i, f, true)
		}},
		{relaySingles, r.startWeft, func(ctx context.Context, p *relayProcess, i int, f *flow) (sender, error) {
			return p.network.udp(ctx, i, f, false)
		}},
		{relayStream, r.startWeft, func(ctx context.Context, p *relayProcess, i int, f *flow) (sender, error) {
			return p.network.stream(ctx, i, f)
		}},
	}
}

// Relay measures weft's relay by itself beside derper: flows between nodes that do nothing but send and receive,
// over loopback, with the relay in a process of its own. Each relay is measured with windows, as TCP has them:
// what it carries, and what that costs it. And it is measured narrow: on a core that it shares with programs that
// never rest, first with windows, which tells what it can carry so, and then flooded.
func Relay(ctx context.Context, o RelayOptions) (_ *Report, err error) {
	r := &relayRun{RelayOptions: o, began: time.Now()}
	if r.dir, err = os.MkdirTemp("", "weft-bench-relay-"); err != nil {
		return nil, err
	}
	defer os.RemoveAll(r.dir)
	if r.Derper == "" {
		r.say("building derper %s", derperVersion)
		if r.Derper, err = buildDerper(ctx, r.Dir); err != nil {
			return nil, err
		}
	}
	r.report = &Report{Schema: weft.SchemaVersion, Name: "relay", Version: o.Version, Started: r.began, Machine: machine()}
	for round := 1; round <= r.Rounds; round++ {
		for _, s := range r.subjects() {
			if !r.wants(s.name) {
				continue
			}
			if err := r.round(ctx, s, round); err != nil {
				return nil, err
			}
		}
	}
	r.report.Seconds = time.Since(r.began).Seconds()
	r.report.Judge(r.goals())
	return r.report, nil
}

func (r *relayRun) wants(subject string) bool {
	return len(r.Only) == 0 || slices.Contains(r.Only, subject)
}

func (r *relayRun) say(format string, args ...any) {
	fmt.Fprintf(r.Out, "%6.1f s  %s\n", time.Since(r.began).Seconds(), fmt.Sprintf(format, args...))
}

// round measures a subject once in each way.
func (r *relayRun) round(ctx context.Context, s relaySubject, round int) error {
	for _, way := range []struct {
		name   string
		narrow bool
		how    func(*flow, context.Context, sender) error
	}{{"", false, (*flow).drive}, {narrow, true, (*flow).drive}, {flooded, true, (*flow).flood}} {
		x, err := r.measure(ctx, s, way.narrow, way.how)
		if err != nil {
			return fmt.Errorf("%s%s: %w", s.name, way.name, err)
		}
		subject := s.name + way.name
		r.report.Add(subject, relayGoodput, "Gbit/s", round, x.rate())
		r.report.Add(subject, relayOffered, "Gbit/s", round, x.offered())
		r.report.Add(subject, relayCPU, "s/GB", round, x.perGB())
		r.report.Add(subject, relayBusy, "cores", round, x.cpu.Seconds()/x.took.Seconds())
		r.report.Add(subject, relayMemory, "MiB", round, x.memory/(1<<20))
		r.say("round %d of %d: %-43s %6.2f Gbit/s of %6.2f, %.3f CPU s/GB, %.2f cores, %.1f MiB", round, r.Rounds,
			subject, x.rate(), x.offered(), x.perGB(), x.cpu.Seconds()/x.took.Seconds(), x.memory/(1<<20))
	}
	return nil
}

// relayed is what went through a relay.
type relayed struct {
	sent, arrived uint64 // datagrams
	cpu, took     time.Duration
	memory        float64 // bytes, the relay's most so far
}

func (x relayed) rate() float64    { return float64(x.arrived) * payload * 8 / 1e9 / x.took.Seconds() }
func (x relayed) offered() float64 { return float64(x.sent) * payload * 8 / 1e9 / x.took.Seconds() }
func (x relayed) perGB() float64   { return x.cpu.Seconds() / (float64(x.arrived) * payload / 1e9) }

// settle is how long flows are under way before it counts.
const settle = 500 * time.Millisecond

// measure has a relay carry all flows for a while.
func (r *relayRun) measure(ctx context.Context, s relaySubject, narrow bool, how func(*flow, context.Context, sender) error) (x relayed, err error) {
	p, err := s.start(ctx, narrow)
	if err != nil {
		return x, err
	}
	defer func() { err = errors.Join(err, p.stop()) }()
	if narrow {
		wide, err := narrowDown(ctx, p.PID())
		if err != nil {
			return x, err
		}
		defer func() { err = errors.Join(err, wide()) }()
		// It is the kernel that shall choose among senders and receivers, by their priorities.
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4 * r.Flows))
	}
	flows, senders := make([]*flow, r.Flows), make([]sender, 0, r.Flows)
	running, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	ended := make(chan error, r.Flows)
	defer func() {
		cancel()
		for _, s := range senders {
			s.Close()
		}
		wg.Wait()
	}()
	opening, stop := context.WithTimeout(ctx, 20*time.Second)
	defer stop()
	for i := range flows {
		flows[i] = newFlow()
		sender, err := s.open(opening, p, i, flows[i])
		if err != nil {
			return x, err
		}
		senders = append(senders, sender)
	}
	for i, f := range flows {
		wg.Go(func() {
			if err := how(f, running, senders[i]); err != nil && running.Err() == nil {
				ended <- err
			}
		})
	}
	pause := func(d time.Duration) error {
		select {
		case <-time.After(d):
			return nil
		case err := <-ended:
			return err
		case <-p.Done():
			return p.Err()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	total := func() (x relayed, err error) {
		for _, f := range flows {
			x.sent += f.sent.Load()
			x.arrived += f.arrived.Load()
		}
		x.took = time.Since(r.began)
		x.cpu, err = cpuOf(p.PID())
		return x, err
	}
	if err := pause(settle); err != nil {
		return x, err
	}
	before, err := total()
	if err != nil {
		return x, err
	}
	if err := pause(r.Length); err != nil {
		return x, err
	}
	after, err := total()
	if err != nil {
		return x, err
	}
	x = relayed{sent: after.sent - before.sent, arrived: after.arrived - before.arrived, cpu: after.cpu - before.cpu, took: after.took - before.took}
	if x.arrived == 0 {
		return x, errors.New("nothing arrives")
	}
	x.memory, err = peakMemory(p.PID())
	return x, err
}

// logOf is where a relay's words go.
func (r *relayRun) logOf(name string) string { return filepath.Join(r.dir, name+".log") }

// lastCPU is the core that a narrow relay is on; the others are its nodes'.
func lastCPU() int { return runtime.NumCPU() - 1 }
