package cli

import (
	"bytes"
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"weft"

	"weft/golden"
)

// pathsSeen are documents as they come: of a peer with one path, of bonded ones when all is well and when not, of none.
func pathsSeen(now time.Time) []weft.Paths {
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	at := netip.MustParseAddrPort
	eth0 := weft.PathStatus{
		Link: "eth0", Local: at("192.168.1.2:41641"), Remote: "203.0.113.7:41641", Method: weft.Direct, Kind: "srflx", State: weft.PathActive,
		RTTms: 21.5, Loss: 0.002, MTU: 1420, LastSeen: ago(time.Second),
		Load:   weft.PathLoad{Share: 0.61, TxRate: 48.2e6, RxRate: 1.1e6, TxBytes: 9 << 30, RxBytes: 212 << 20, TxPackets: 7e6, RxPackets: 2e5},
		Bonded: weft.BondedPath{Rate: 49.7e6, MinRTTms: 20, InFlight: 120000, Window: 260000, Lost: 1200, Again: 7},
	}
	wwan0 := weft.PathStatus{
		Link: "wwan0", Local: at("10.64.3.9:41641"), Remote: "[2001:db8::7]:41641", Method: weft.Direct, Kind: "host", State: weft.PathSilent,
		Reason: "nothing of 12 packets was acknowledged for 78ms, while other paths' were", RTTms: 60.25, Metric: 20,
		Load: weft.PathLoad{TxBytes: 4 << 20, RxBytes: 1 << 20}, Bonded: weft.BondedPath{Rate: 9.5e6},
	}
	relay := weft.PathStatus{Link: "eth0", Remote: "home", Method: weft.RelayUDP, State: weft.PathReady, RTTms: 44, LastSeen: ago(3 * time.Second)}
	dead := weft.PathStatus{Remote: "198.51.100.9:1024", Method: weft.Direct, Kind: "prflx", State: weft.PathFailed, Reason: "no answer to 3 pings within 400ms on direct 198.51.100.9:1024"}
	alone := weft.PathStatus{
		Local: at("192.168.1.2:41641"), Remote: "203.0.113.7:41641", Method: weft.Direct, Kind: "host", State: weft.PathInUse, Reason: "a direct path answers",
		RTTms: 0.4, Load: weft.PathLoad{Share: 1, TxRate: 812, RxRate: 2.5e9, TxBytes: 812, RxBytes: 3 << 40},
	}
	idle := relay
	idle.Link = ""
	var flaps []weft.PathEvent
	for i := range eventsShown + 3 {
		flaps = append(flaps, weft.PathEvent{At: ago(time.Duration(60-i) * time.Second), Path: "direct [2001:db8::7]:41641 by wwan0", From: weft.PathActive, To: weft.PathSilent, Reason: "nothing came"})
	}
	return []weft.Paths{
		{
			Peer: "bob", Online: true, Bond: weft.BondStatus{Mode: "aggregate", Congestion: "bbr", Why: "there is only one path"},
			Paths: []weft.PathStatus{alone, idle, dead}, Untested: 1,
			Events: []weft.PathEvent{
				{At: ago(time.Hour), Path: "relay-udp home", From: weft.PathUntested, To: weft.PathReady, Reason: "it answers"},
				{At: ago(time.Hour), Path: "relay-udp home", From: weft.PathReady, To: weft.PathInUse, Reason: "the first way to answer"},
			},
		},
		{
			Peer: "bob", Online: true,
			Bond: weft.BondStatus{On: true, Mode: "aggregate", Congestion: "bbr", Redundant: []string{"dscp:ef", "udp:5004"}, QueuePackets: 12, QueueBytes: 17000,
				Received: weft.BondReceived{Delivered: 1234567, Held: 5210, Reordered: 31, Late: 4, Duplicates: 80, GapsPassed: 6, GapsTimedOut: 1}},
			Paths: []weft.PathStatus{eth0, relay, wwan0}, Untested: 5, Events: flaps,
		},
		{Peer: "bob", Online: true, Bond: weft.BondStatus{On: true, Mode: "redundant", Congestion: "cubic", Redundant: []string{"dscp:ef"}, QueuePackets: 1}, Paths: []weft.PathStatus{eth0}},
		{Peer: "bob", Bond: weft.BondStatus{Mode: "off", Congestion: "bbr", Why: "there is no path."}, Paths: []weft.PathStatus{dead}},
		{Peer: "bob", Online: true, Bond: weft.BondStatus{Mode: "aggregate", Congestion: "bbr"}},
	}
}

func TestPathsReadAsAPersonWouldSayIt(t *testing.T) {
	defer func(old *time.Location) { time.Local = old }(time.Local)
	time.Local = time.UTC
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	var got bytes.Buffer
	for _, p := range pathsSeen(now) {
		if err := printPaths(&got, p, now); err != nil {
			t.Fatal(err)
		}
		got.WriteString("\n----\n")
	}
	golden.Text(t, "paths.txt", got.String())
}

func TestWatchedPathsAreLinesWhereThereIsNoTerminal(t *testing.T) {
	defer func(old *time.Location) { time.Local = old }(time.Local)
	time.Local = time.UTC
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	var got bytes.Buffer
	var before weft.Paths
	for i, p := range pathsSeen(now) {
		if err := printPathLines(&got, p, before, i == 0, now); err != nil {
			t.Fatal(err)
		}
		if err := printPathLines(&got, p, p, false, now.Add(time.Second)); err != nil { // nothing new happened
			t.Fatal(err)
		}
		before = p
		got.WriteString("----\n")
	}
	golden.Text(t, "paths-watched.txt", got.String())
}

func TestOnATerminalPathsAreDrawnInPlace(t *testing.T) {
	var out bytes.Buffer
	a := &app{out: &out}
	list := pathsSeen(time.Now())
	for i, p := range list {
		if err := a.redraw(p, i == 0); err != nil {
			t.Fatal(err)
		}
	}
	if got := strings.Count(out.String(), "\x1b[2J"); got != 1 || !strings.HasPrefix(out.String(), "\x1b[H\x1b[2J") {
		t.Errorf("the screen is cleared %d times", got)
	}
	if got := strings.Count(out.String(), "\x1b[H"); got != len(list) {
		t.Errorf("of %d pictures %d begin at the top", len(list), got)
	}
	for line := range strings.Lines(out.String()) { // what a longer line left is wiped away
		if strings.HasSuffix(line, "\n") && !strings.HasSuffix(line, "\x1b[K\n") {
			t.Errorf("a line ends as %q", line)
		}
	}
	if !strings.HasSuffix(out.String(), "\x1b[J") {
		t.Error("what a longer picture left is not wiped away")
	}
}

func TestTheExitCodeOfPathsSaysWhetherThereIsOne(t *testing.T) {
	for i, want := range []bool{true, true, true, false, false} {
		if got := reached(pathsSeen(time.Now())[i]); got != want {
			t.Errorf("document %d: %v", i, got)
		}
	}
	if err := printPaths(failing{}, pathsSeen(time.Now())[0], time.Now()); !errors.Is(err, os.ErrClosed) {
		t.Errorf("where nothing can be written it says %v", err)
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, os.ErrClosed }
