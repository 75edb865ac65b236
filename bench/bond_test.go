package bench

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"encoding/xml"
	"errors"
	"html"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weft/lab/netns"
)

// aCase is one of the benchmark's.
func aCase(t *testing.T, name string) *bondCase {
	t.Helper()
	i := slices.IndexFunc(bondCases, func(c *bondCase) bool { return c.name == name })
	if i < 0 {
		t.Fatalf("there is no case %q", name)
	}
	return bondCases[i]
}

// ran is a run of a case in one direction.
func ran(c *bondCase, s bondSubject, links []BondLink, mbit float64) *BondRun {
	return &BondRun{Case: c.name, Subject: s, Control: "cubic", Links: links, Direction: "out", Round: 1, Seconds: 15, Warm: 5, Step: 0.1, Mbit: mbit}
}

// verdicts are the goals of one direction by name.
func verdicts(r *BondReport, direction string) map[string]bool {
	m := map[string]bool{}
	for _, g := range r.Goals {
		if g.Direction == direction && !g.Told {
			m[g.Name] = g.Reached
		}
	}
	return m
}

func TestEfficiencyIsOfTheSumOfWhatEachLinkCarriesAlone(t *testing.T) {
	c := aCase(t, "unequal-8+16")
	for _, x := range []struct {
		all, first, second float64
		reached            bool
	}{
		{20.9, 7, 15, true}, {20.8, 7, 15, false}, // 0.95 of 22 is 20.9
		{20.9, 7, 0, false}, // what was not measured is no sum
	} {
		r := &BondReport{Runs: []*BondRun{ran(c, bonded, c.links, x.all), ran(c, single, c.links[:1], x.first)}}
		if x.second > 0 {
			r.Runs = append(r.Runs, ran(c, single, c.links[1:], x.second))
		}
		r.judge([]*bondCase{c})
		if got := verdicts(r, "out")[efficiencyGoal]; got != x.reached {
			t.Errorf("%v beside %v and %v: reached is %v", x.all, x.first, x.second, got)
		}
		if verdicts(r, "in")[efficiencyGoal] {
			t.Error("what was measured in one direction counts for the other")
		}
		if !r.Missed() {
			t.Error("a goal that nothing was measured for is not missed")
		}
	}
}

func TestARunThatFailedCountsForNothing(t *testing.T) {
	c := aCase(t, "equal-2x8")
	bad := ran(c, bonded, c.links, 100)
	bad.Problem = "the link broke"
	r := &BondReport{Runs: []*BondRun{bad, ran(c, single, c.links[:1], 7)}}
	r.judge([]*bondCase{c})
	if verdicts(r, "out")[efficiencyGoal] {
		t.Error("it is reached")
	}
	var out bytes.Buffer
	if err := r.Print(&out); err != nil || !strings.Contains(out.String(), "the link broke") {
		t.Errorf("nobody is told of it: %v\n%s", err, out.String())
	}
}

func TestTheWorstRunCountsWhereNeverIsWanted(t *testing.T) {
	c := aCase(t, "added-slow")
	r := &BondReport{}
	for _, v := range []float64{46, 46, 45} {
		r.Runs = append(r.Runs, ran(c, single, c.links[:1], 46), ran(c, bonded, c.links, v))
	}
	r.judge([]*bondCase{c})
	if !slices.ContainsFunc(r.Goals, func(g BondGoal) bool { return g.Direction == "out" && g.ByWorst && !g.Reached && g.Median == 1 }) {
		t.Errorf("45 of 46 in one of three runs is enough: %+v", r.Goals)
	}
}

// flowOf is a flow whose datagrams were sent every millisecond and arrived after 10 ms, but for what f says.
func flowOf(n int, f func(i int) (at time.Duration, arrives bool)) *datagramFlow {
	flow := &datagramFlow{rate: 1000}
	type arrival struct {
		at time.Duration
		i  uint32
	}
	var list []arrival
	for i := range n {
		sent := time.Duration(i) * time.Millisecond
		flow.sent, flow.arrived = append(flow.sent, sent), append(flow.arrived, 0)
		at, arrives := sent+10*time.Millisecond, true
		if f != nil {
			at, arrives = f(i)
		}
		if arrives {
			flow.arrived[i] = at
			list = append(list, arrival{at, uint32(i)})
		}
	}
	slices.SortStableFunc(list, func(a, b arrival) int { return int(a.at - b.at) })
	for _, a := range list {
		flow.order = append(flow.order, a.i)
	}
	return flow
}

func TestWhatAnEventDidToDatagramsIsTold(t *testing.T) {
	// From 500 ms on nothing arrives for 120 ms; ten are lost, the others of that time come late.
	flow := flowOf(2000, func(i int) (time.Duration, bool) {
		sent := time.Duration(i) * time.Millisecond
		switch {
		case i >= 500 && i < 510:
			return 0, false
		case i >= 510 && i < 600:
			return 620 * time.Millisecond, true
		}
		return sent + 10*time.Millisecond, true
	})
	got := flow.disturbance(500*time.Millisecond, 1500*time.Millisecond)
	// The last before arrived at 509 ms.
	if want := (Disturbance{GapMS: 101, Lost: 10, LatencyMS: 110}); !cmp.Equal(got, want) {
		// 600 to 609 arrive from 610 ms on, so silence ends there.
		t.Errorf("it is %+v, not %+v", got, want)
	}
	quiet := flow.disturbance(800*time.Millisecond, 1500*time.Millisecond)
	if quiet.Lost != 0 || quiet.GapMS > 2 {
		t.Errorf("when nothing happened, it is %+v", quiet)
	}
	silent := flowOf(2000, func(i int) (time.Duration, bool) { return time.Duration(i+10) * time.Millisecond, i < 500 })
	if got := silent.disturbance(500*time.Millisecond, 1500*time.Millisecond); got.GapMS < 990 || got.Lost != 1000 {
		t.Errorf("of a flow that never goes on, it is %+v", got)
	}
}

func TestDatagramsThatOvertakeAreCounted(t *testing.T) {
	flow := flowOf(1000, func(i int) (time.Duration, bool) {
		at := time.Duration(i+10) * time.Millisecond
		if i%100 == 50 {
			at += 5*time.Millisecond + time.Microsecond
		}
		return at, true
	})
	if u := flow.figures(0, time.Second); u.Reordered != 10 || u.Lost != 0 || u.Sent != 1000 {
		t.Errorf("of 10 that were overtaken in 1000 it counts %+v", u)
	}
	if u := flow.figures(0, 500*time.Millisecond); u.Reordered != 5 || u.Sent != 500 {
		t.Errorf("of the first half it counts %+v", u)
	}
}

// overlayPacket is a TCP packet as it comes out of the overlay's interface, behind a virtio-net header.
func overlayPacket(id uint16, payload, size int, port uint16) []byte {
	b := make([]byte, 10+20+32+payload)
	if size > 0 {
		b[1] = 1 // VIRTIO_NET_HDR_GSO_TCPV4
		binary.NativeEndian.PutUint16(b[4:], uint16(size))
	}
	ip := b[10:]
	ip[0], ip[9] = 0x45, 6
	binary.BigEndian.PutUint16(ip[4:], id)
	binary.BigEndian.PutUint16(ip[20:], 40000)
	binary.BigEndian.PutUint16(ip[22:], port)
	ip[20+12] = 8 << 4
	return b
}

func TestPacketsThatComeAfterALaterOneAreCountedAndThoseThatAreMissingNot(t *testing.T) {
	for _, c := range []struct {
		what string
		list [][]byte
		want orderCounts
	}{
		{"in order, with a hole where packets were lost, round the end of the numbers",
			[][]byte{overlayPacket(65530, 1000, 0, bondPort), overlayPacket(65531, 4000, 1000, bondPort), overlayPacket(3, 1000, 0, bondPort)}, orderCounts{Packets: 6}},
		{"one late by two", [][]byte{overlayPacket(1, 1000, 0, bondPort), overlayPacket(3, 2000, 1000, bondPort), overlayPacket(2, 1000, 0, bondPort)},
			orderCounts{Packets: 4, Late: 1, Depth: 2}},
		{"other connections, and acknowledgements without data", [][]byte{overlayPacket(9, 1000, 0, bondPort), overlayPacket(8, 1000, 0, 80), overlayPacket(7, 0, 0, bondPort)},
			orderCounts{Packets: 1}},
		{"what is no packet", [][]byte{nil, make([]byte, 10), make([]byte, 80), overlayPacket(1, 1000, 0, bondPort)[:45]}, orderCounts{}},
	} {
		m := &orderMeter{port: bondPort}
		for _, b := range c.list {
			m.take(b[:min(len(b), netns.HeadSize)], len(b))
		}
		if got := m.reset(); got != c.want {
			t.Errorf("%s: %+v, not %+v", c.what, got, c.want)
		}
	}
}

func TestARateIsSettledWhenItIsNeverBelowAgain(t *testing.T) {
	x := &BondRun{Step: 0.1}
	for i := range 200 {
		v := 30.0
		if i >= 80 && i < 95 {
			v = 10
		}
		x.Curve = append(x.Curve, v)
	}
	// The half second that ends at 9.5 s is all low, and the one from 9.2 s to 9.7 s has three fifths: (3 x 10 + 2 x 30)/5 = 18.
	if got := x.settled(8, 20, 20); got < 1.6 || got > 1.75 {
		t.Errorf("settled after %v", got)
	}
	if got := x.settled(10, 20, 29); got != 0 {
		t.Errorf("what was never below is settled after %v", got)
	}
	if got := x.settled(8, 20, 31); got < 11.9 {
		t.Errorf("what never gets there is settled after %v", got)
	}
	if got := x.lowest(5, 20); got != 10 {
		t.Errorf("the lowest is %v", got)
	}
	// A hole, and what waited behind it: all of it came in time.
	x.Curve, x.TCP = nil, &TCPFigures{}
	for i := range 200 {
		v := 30.0
		switch i {
		case 150:
			v = 10
		case 151:
			v = 50
		}
		x.Curve, x.TCP.Came = append(x.Curve, v), append(x.TCP.Came, 30)
	}
	if got := x.settled(10, 20, 28); got != 0 {
		t.Errorf("what came in time is settled after %v", got)
	}
	x.TCP.Came[150] = 10
	if got := x.settled(10, 20, 28); got < 5.4 {
		t.Errorf("what did not come until 15.1 s is settled after %v", got)
	}
}

func TestALinkAloneIsMeasuredOnceForAllCasesAndInBothDirections(t *testing.T) {
	for _, full := range []bool{false, true} {
		r := &bondRun{BondOptions: BondOptions{Rounds: 2, Full: full, Length: BondLength, Only: []string{"equal-2x8", "equal-8x8", "unequal-8+16"}}}
		got := map[string]int{}
		for _, u := range r.units() {
			if u.subject == single {
				got[u.links[0].String()+" "+u.direction()]++
			}
		}
		if diff := cmp.Diff(map[string]int{"8/20 out": 1, "8/20 in": 1, "16/20 out": 1, "16/20 in": 1}, got); diff != "" {
			t.Error(full, diff)
		}
	}
}

func TestInFullABondIsMeasuredInEachRunOfEachCase(t *testing.T) {
	const runs = 3
	r := &bondRun{BondOptions: BondOptions{Rounds: runs, Full: true, Length: BondLength}}
	got := map[string]int{}
	for _, u := range r.units() {
		if u.subject == bonded {
			got[u.c.name] |= 1 << u.round
		}
	}
	for _, c := range bondCases {
		if c.name != "fast" && got[c.name] != 1<<1|1<<2|1<<3 { // which has no units
			t.Errorf("%s is measured in runs %b of %d", c.name, got[c.name]>>1, runs)
		}
	}
}

// Twenty minutes are what people are told.
func TestAllThatIsMeasuredTakesTwentyMinutes(t *testing.T) {
	r := &bondRun{BondOptions: BondOptions{Rounds: BondRounds, Length: BondLength, Worlds: BondWorlds, Load: BondLoad}}
	var total time.Duration
	for _, b := range r.batches(r.units()) {
		total += length(b) + batchCost
	}
	total += BondRounds * 2 * (fastLength + 500*time.Millisecond)
	if total > 20*time.Minute {
		t.Errorf("it takes %v", total)
	}
}

// The raw figures of a run make its page, which is one document without anything from elsewhere.
func TestThePageOfARunIsWholeAndNeedsNothing(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("testdata", "bond.json"))
	if err != nil {
		t.Fatal(err)
	}
	var r BondReport
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatal(err)
	}
	r.Goals = nil
	r.judge(bondCases)
	page, err := r.page()
	if err != nil {
		t.Fatal(err)
	}
	text := string(page)
	for _, no := range []string{"<script", "http://", "https://", "src=", "NaN", "Inf", "@import", "url("} {
		if strings.Contains(text, no) {
			t.Errorf("the page has %q", no)
		}
	}
	for _, x := range r.Runs {
		if !strings.Contains(html.UnescapeString(text), `id="`+x.Case+`"`) {
			t.Errorf("the page does not show %s", x.Case)
		}
	}
	pictures := 0
	for rest := text; ; pictures++ {
		i := strings.Index(rest, "<svg")
		if i < 0 {
			break
		}
		end := strings.Index(rest, "</svg>")
		d := xml.NewDecoder(strings.NewReader(rest[i : end+6]))
		for {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("picture %d: %v", pictures, err)
			}
		}
		rest = rest[end+6:]
	}
	if pictures < 5 {
		t.Errorf("there are %d pictures", pictures)
	}
	dir := t.TempDir()
	paths, err := r.Save(dir)
	if err != nil || len(paths) != 2 {
		t.Fatal(paths, err)
	}
}
