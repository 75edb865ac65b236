package bench

import (
	"context"
	"fmt"
	"io"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"weft"
	"weft/lab/netns"
)

// OverlayOptions say how much is measured.
type OverlayOptions struct {
	Binary     string // path of weft
	Out        io.Writer
	Only       []string      // names of [Parts]; none: all
	Rounds     int           // the subjects alternate within each
	Length     time.Duration // of one run under load
	Echoes     int           // of one run of idle RTTs
	Joins      int           // of fresh nodes behind NATs
	Tries      int           // of one run, if the machine had other work meanwhile
	Congestion string        // control of all TCP, as the kernel calls it
	Logs       string        // directory for the logs of what is started, and for profiles; "" keeps none
	Version    string
}

// The subjects.
const (
	bare       = "bare link"
	plain      = "wireguard-go"
	direct     = "weft direct"
	udpRelay   = "weft udp relay"
	streamPath = "weft stream relay"
	nat        = "weft behind two NATs"
	ruled      = "weft, 1000 rules"
	words      = "weft, two words"
	portalOut  = "weft portal, out"
	portalIn   = "weft portal, in"
	onePeer    = "engine, 1 peer"
	crowd      = "engine, 1000 peers"
)

// The measures.
const (
	oneStream    = "TCP, one stream"
	manyStreams  = "TCP, 8 streams"
	cpuOne       = "CPU per GB, one stream"
	cpuMany      = "CPU per GB, 8 streams"
	udpDelivered = "UDP at 1 Gbit/s, delivered"
	udpOffered   = "UDP at 1 Gbit/s, sent"
	udpLost      = "UDP at 1 Gbit/s, lost"
	rttIdle      = "RTT, idle, median"
	rttIdle95    = "RTT, idle, 95 %"
	rttBusy      = "RTT under load, median"
	rttBusy95    = "RTT under load, 95 %"
	rttBusyLost  = "RTT under load, echoes lost"
	rttBusyRate  = "RTT under load, the load"
	cipherShare  = "profile, cipher"
	kernelShare  = "profile, system calls"
	memoryPeak   = "memory, peak"
	relayedRate  = "TCP, one stream, by relay or not"
	relayedCPU   = "CPU per GB, by relay or not"
	ruledRate    = "TCP, one stream, by rules"
	ruledCPU     = "CPU per GB, by rules"
	wordsRate    = "TCP, one stream, by two words or not"
	wordsCPU     = "CPU per GB, by two words or not"
	thinRate     = "TCP, one stream, link of 1 Gbit/s"
	thinCPU      = "CPU per GB, link of 1 Gbit/s"
	portalRate   = "TCP, one stream, by portal or not"
	portalCPU    = "CPU per GB, by portal or not"
	jumboRate    = "TCP, one stream, MTU 9000"
	jumboCPU     = "CPU per GB, MTU 9000"
	crowdOut     = "50 flows, out"
	crowdOutCPU  = "the hub's CPU per GB, out"
	crowdIn      = "50 flows, in"
	crowdInCPU   = "the hub's CPU per GB, in"
	crowdBytes   = "memory of an idle peer"
	toDirect     = "relayed to direct"
	toFirst      = "join to first packet"
)

// A part is something to measure that can be asked for by name.
type part struct {
	name, about string
	goals       []Goal
}

// parts are in the order in which they are measured. Their goals are what has to be reached.
var parts = []part{
	{"throughput", "one TCP stream, and the CPU time that a GB takes", []Goal{
		{Name: "direct, one TCP stream, x wireguard-go", Measure: oneStream, Subject: direct, Over: plain, Least: 1.8},
		{Name: "CPU seconds per GB, whole machine", Measure: cpuOne, Subject: direct, Most: 4.5},
		{Name: "CPU seconds per GB, x wireguard-go", Measure: cpuOne, Subject: direct, Over: plain, Most: 4.5 / 7.8},
	}},
	{"streams", "8 TCP streams", []Goal{
		{Name: "direct, 8 TCP streams, x wireguard-go", Measure: manyStreams, Subject: direct, Over: plain, Least: 2.3},
	}},
	{"udp", "datagrams of 1,300 bytes at 1 Gbit/s", []Goal{
		{Name: "UDP delivered, x wireguard-go", Measure: udpDelivered, Subject: direct, Over: plain, Least: 3},
	}},
	{"rtt", "echoes through an idle tunnel", []Goal{
		{Name: "RTT, idle, x wireguard-go", Measure: rttIdle, Subject: direct, Over: plain, Most: 0.7},
	}},
	{"loaded", "echoes beside one TCP stream", []Goal{
		{Name: "RTT under one bulk flow, x wireguard-go", Measure: rttBusy, Subject: direct, Over: plain, Most: 0.5},
	}},
	{"memory", "what the busy processes take", []Goal{
		{Name: "memory, one busy peer, MiB", Measure: memoryPeak, Subject: direct, Most: 40},
	}},
	{"profile", "the cipher's share of what the processes do", []Goal{
		{Name: "cipher's share of a profile, %", Measure: cipherShare, Subject: direct, Least: 40},
	}},
	{"relays", "one TCP stream by each kind of relay", []Goal{
		{Name: "UDP relay, x direct", Measure: relayedRate, Subject: udpRelay, Over: direct, Least: 0.6},
		{Name: "stream relay (TLS), x direct", Measure: relayedRate, Subject: streamPath, Over: direct, Least: 0.4},
	}},
	{"rules", "one TCP stream past 1,000 rules", []Goal{
		{Name: "1,000 rules, x one rule", Measure: ruledRate, Subject: ruled, Over: direct, Least: 0.97},
	}},
	{"words", "one TCP stream in a network of two words", []Goal{
		{Name: "two words, x direct", Measure: wordsRate, Subject: words, Over: direct, Least: 0.95},
		{Name: "two words, link of 1 Gbit/s, x bare link", Measure: thinRate, Subject: words, Over: bare, Least: 0.79},
	}},
	{"portal", "one TCP stream through a portal, out and in", []Goal{
		{Name: "portal, out, x direct", Measure: portalRate, Subject: portalOut, Over: direct, Least: 0.7},
		{Name: "portal, in, x direct", Measure: portalRate, Subject: portalIn, Over: direct, Least: 0.7},
	}},
	{"jumbo", "one TCP stream over a link of MTU 9000", []Goal{
		{Name: "MTU 9000, x wireguard-go", Measure: jumboRate, Subject: direct, Over: plain, Least: 1.4},
	}},
	{"peers", "one engine with 1,000 peers, 50 of them active", []Goal{
		{Name: "to 50 active of 1,000 peers, x to one peer", Measure: crowdOut, Subject: crowd, Over: onePeer, Least: 0.95},
		{Name: "from 50 active of 1,000 peers, x from one peer", Measure: crowdIn, Subject: crowd, Over: onePeer, Least: 0.95},
		{Name: "an idle peer of 1,000, KiB", Measure: crowdBytes, Subject: crowd, Most: 12},
	}},
	{"joins", "fresh nodes behind NATs", []Goal{
		{Name: "relayed to direct, s", Measure: toDirect, Subject: nat, Most: 1},
		{Name: "join to first packet, s", Measure: toFirst, Subject: nat, Most: 2},
	}},
}

// tunnelled are the parts that one pair of hosts is for.
var tunnelled = []string{"throughput", "streams", "udp", "rtt", "loaded", "memory", "profile", "relays"}

// used are the parts that another pair of hosts is for: a portal takes the address of one of them away.
var used = []string{"rules", "words", "portal"}

// Parts are the names that OverlayOptions.Only takes, in order, with a word on each.
func Parts() (names, about []string) {
	for _, p := range parts {
		names, about = append(names, p.name), append(about, p.about)
	}
	return names, about
}

// overlayRun is one benchmark under way.
type overlayRun struct {
	OverlayOptions
	report *Report
	began  time.Time
}

// Overlay measures weft's paths beside plain wireguard-go and the bare link, and joins behind NATs. When it fails, the
// report has what was measured until then, and judges nothing.
func Overlay(ctx context.Context, o OverlayOptions) (*Report, error) {
	if err := netns.Available(); err != nil {
		return nil, fmt.Errorf("the benchmark needs network namespaces: %w", err)
	}
	names, _ := Parts()
	for _, name := range o.Only {
		if !slices.Contains(names, name) {
			return nil, fmt.Errorf("there is nothing called %q to measure: there are %s", name, strings.Join(names, ", "))
		}
	}
	r := &overlayRun{OverlayOptions: o, began: time.Now()}
	r.report = &Report{Schema: weft.SchemaVersion, Name: "overlay", Version: o.Version, Started: r.began, Machine: machine()}
	r.report.Note("TCP congestion control of all connections: %s", o.Congestion)
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if m.Path == "golang.zx2c4.com/wireguard" {
				r.report.Note("wireguard-go %s, %s", m.Version, info.GoVersion)
			}
		}
	}
	for _, step := range []struct {
		wanted bool
		run    func(context.Context) error
	}{
		{slices.ContainsFunc(tunnelled, r.wants), r.tunnels},
		{slices.ContainsFunc(used, r.wants), r.uses},
		{r.wants("jumbo"), r.jumbo},
		{r.wants("peers"), r.crowds},
		{r.wants("joins"), r.joins},
	} {
		if !step.wanted {
			continue
		}
		if err := step.run(ctx); err != nil {
			r.report.Note("It ended early: %v", err)
			return r.report, err
		}
	}
	r.report.Seconds = time.Since(r.began).Seconds()
	for _, p := range parts {
		if r.wants(p.name) {
			r.report.Judge(p.goals)
		}
	}
	return r.report, nil
}

// wants tells whether a part is asked for.
func (r *overlayRun) wants(part string) bool {
	return len(r.Only) == 0 || slices.Contains(r.Only, part)
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
