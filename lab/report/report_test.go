package report

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/html"

	"weft"
	"weft/golden"
	"weft/lab/matrix"
)

// example is a result with one cell of each outcome.
func example() *matrix.Result {
	run := func(seed uint64, w matrix.Way, ms float64, packets int) matrix.Run {
		r := matrix.Run{Seed: seed, Path: weft.PathDirect, Way: w, DirectAfterMS: ms, Packets: packets, Reason: "it answered"}
		if w == matrix.Relayed {
			r.Path, r.Reason = weft.PathRelay, "no direct path <yet>"
		}
		return r
	}
	sample := &matrix.Sample{Seed: 2, Lanes: []string{"a", "nat-a", "server", "nat-b", "b"}, Logs: []matrix.Log{{Host: "a", Text: "one\n<two>"}}, Steps: []matrix.Step{
		{At: 0, From: "a", End: "server", Via: []string{"nat-a"}, What: "binding request", Target: "203.0.113.1:3478", Source: "198.51.100.1:4000", Count: 1},
		{At: 20 * time.Millisecond, From: "b", End: "nat-a", What: "probe", Target: "198.51.100.1:4000", Source: "198.51.100.2:5000", Count: 1, Dropped: true,
			Why: "the filter is not open for that sender"},
		{At: time.Second, Until: 5 * time.Second, From: "a", End: "b", What: "probe", Target: "198.51.100.2", Count: 2048, Skipped: 1200},
	}}
	return &matrix.Result{
		Schema: 1, Version: "test", Command: "weft lab nat --matrix rfc4787", Started: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Seconds: 12.5,
		Backend: "vnet", Conditions: matrix.Conditions{Matrix: "rfc4787", Layout: "single", Pool: 1, Ports: "random", OneWay: 20, Patient: 60},
		Seeds: 2, FirstSeed: 1, Jobs: 2, Rows: []string{"x<y", "z"}, Cols: []string{"x<y", "z"}, Expected: "best.csv",
		Summary: matrix.Summary{Cells: 3, Direct: 2, Possible: 3, Runs: 6, Ways: []matrix.WayStats{
			{Way: matrix.Plain, Runs: 2, Direct: matrix.Distribution{P50: 61, P95: 80.5, Max: 80.5}, Packets: matrix.Distribution{P50: 6, P95: 8, Max: 8}},
			{Way: matrix.Sprayed, Runs: 2, Direct: matrix.Distribution{P50: 1500, P95: 4000, Max: 4000}, Packets: matrix.Distribution{P50: 900, P95: 2400, Max: 2400}},
			{Way: matrix.Relayed, Runs: 2, Packets: matrix.Distribution{P50: 19000, P95: 20000, Max: 20000}},
		}},
		Differences: []matrix.Difference{{Row: "z", Col: "x<y", Expected: matrix.Direct, Got: matrix.Relay}},
		Surprises:   []matrix.Difference{{Row: "z", Col: "x<y", Expected: matrix.Direct, Got: matrix.Relay}},
		Cells: []matrix.CellResult{
			{Row: "x<y", Col: "x<y", Possible: matrix.Plain, Why: "both map alike", Verdict: matrix.Direct, Way: matrix.Plain, Share: 1,
				Runs: []matrix.Run{run(1, matrix.Plain, 61, 6), run(2, matrix.Plain, 80.5, 8)}, Sample: sample},
			{Row: "x<y", Col: "z", Possible: matrix.Sprayed, Why: "a filter ignores ports", Verdict: matrix.Direct, Way: matrix.Sprayed, Share: 1,
				Runs: []matrix.Run{run(1, matrix.Sprayed, 1500, 900), run(2, matrix.Sprayed, 4000, 2400)}},
			{Row: "z", Col: "x<y", Possible: matrix.Predicted, Why: "the next ports can be known", Verdict: matrix.Relay, Way: matrix.Relayed,
				Runs: []matrix.Run{run(1, matrix.Relayed, 0, 19000), run(2, matrix.Relayed, 0, 20000)}},
			{Row: "z", Col: "z", Possible: matrix.Relayed, Why: "nothing helps", Verdict: matrix.Open, Runs: []matrix.Run{}},
		},
	}
}

func written(t *testing.T, r *matrix.Result) string {
	t.Helper()
	var b bytes.Buffer
	if err := Write(&b, r); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestThePicturesAreAsTheyWere(t *testing.T) {
	r := example()
	lines := func(s any) string { return strings.ReplaceAll(fmt.Sprint(s), "><", ">\n<") + "\n" }
	golden.Text(t, "matrix.svg", lines(picture(r)))
	golden.Text(t, "sequence.svg", lines(diagram(r.Cells[0].Sample)))
	times, packets := curves(r)
	golden.Text(t, "times.svg", lines(times.draw()))
	golden.Text(t, "packets.svg", lines(packets.draw()))
	_, body, _ := strings.Cut(written(t, r), `<h2>Beside what was expected</h2>`)
	body, _, _ = strings.Cut(body, `<h3>Time to a direct path</h3>`)
	golden.Text(t, "figures.html", body)
}

// elements calls f for every element of a page.
func elements(t *testing.T, page string, f func(*html.Node, map[string]string)) {
	t.Helper()
	root, err := html.Parse(strings.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	for n := range root.Descendants() {
		if n.Type == html.ElementNode {
			attrs := map[string]string{}
			for _, a := range n.Attr {
				attrs[a.Key] = a.Val
			}
			f(n, attrs)
		}
	}
}

func TestThePageFetchesNothing(t *testing.T) {
	text := written(t, example())
	elements(t, text, func(n *html.Node, attrs map[string]string) {
		for _, key := range []string{"src", "srcset", "data", "action", "poster", "background"} {
			if v, ok := attrs[key]; ok {
				t.Errorf("<%s %s=%q>", n.Data, key, v)
			}
		}
		if h, ok := attrs["href"]; ok && !strings.HasPrefix(h, "#") {
			t.Errorf("<%s href=%q>", n.Data, h)
		}
		if n.Data == "link" || n.Data == "iframe" || n.Data == "object" || n.Data == "img" {
			t.Errorf("there is a <%s>", n.Data)
		}
	})
	if found := regexp.MustCompile(`(?i)url\(|@import|https?:|fetch\(|XMLHttp`).FindString(text); found != "" {
		t.Errorf("the page has %q", found)
	}
}

func TestEveryLinkInThePictureLeadsToItsCell(t *testing.T) {
	for name, r := range map[string]*matrix.Result{"few": example(), "many": many(20)} {
		ids, links := map[string]int{}, map[string]bool{}
		elements(t, written(t, r), func(n *html.Node, attrs map[string]string) {
			if id, ok := attrs["id"]; ok {
				ids[id]++
			}
			if h, ok := attrs["href"]; ok {
				links[strings.TrimPrefix(h, "#")] = true
			}
		})
		if len(links) != len(r.Cells) || len(links) == 0 {
			t.Errorf("%s: %d links for %d cells", name, len(links), len(r.Cells))
		}
		for l := range links {
			if ids[l] != 1 {
				t.Errorf("%s: #%s leads to %d places", name, l, ids[l])
			}
		}
	}
}

func TestWhatARunSaysIsTextAndNothingElse(t *testing.T) {
	r := example()
	const evil = `"><script>alert(1)</script><img onerror=x>`
	c := &r.Cells[0]
	c.Row, r.Rows[0], c.Why, c.Runs[0].Reason, c.Runs[1].Error = evil, evil, evil, evil, evil
	c.Sample.Steps[0].What, c.Sample.Steps[0].Why, c.Sample.Lanes[0], c.Sample.Logs[0].Text, r.Command, r.Expected = evil, evil, evil, evil, evil, evil
	scripts := 0
	elements(t, written(t, r), func(n *html.Node, attrs map[string]string) {
		if n.Data == "script" {
			scripts++
		}
		if _, ok := attrs["onerror"]; ok || n.Data == "img" {
			t.Errorf("there is a <%s> with %v", n.Data, attrs)
		}
	})
	if scripts != 1 {
		t.Errorf("the page has %d scripts; one of them is its own", scripts)
	}
}

// many is a result of n by n cells, each of 200 runs and a long trace.
func many(n int) *matrix.Result {
	r := example()
	sample, cell := *r.Cells[0].Sample, r.Cells[0]
	for len(sample.Steps) < 70 {
		sample.Steps = append(sample.Steps, sample.Steps[1])
	}
	cell.Sample, cell.Runs = &sample, nil
	for i := range 200 {
		cell.Runs = append(cell.Runs, matrix.Run{Seed: uint64(i), Path: weft.PathDirect, Way: matrix.Plain, DirectAfterMS: float64(10 + i), Packets: i, Reason: strings.Repeat("why ", 20)})
	}
	r.Rows, r.Cols, r.Cells, r.Differences, r.Surprises = nil, nil, nil, nil, nil
	for i := range n {
		name := fmt.Sprintf("type-%d", i)
		r.Rows, r.Cols = append(r.Rows, name), append(r.Cols, name)
	}
	for _, row := range r.Rows {
		for _, col := range r.Cols {
			c := cell
			c.Row, c.Col = row, col
			r.Cells = append(r.Cells, c)
		}
	}
	return r
}

func TestAPageOf81CellsAnd200SeedsIsSmallEnoughToSend(t *testing.T) {
	if n := len(written(t, many(9))); n > 3_000_000 {
		t.Errorf("it has %d bytes", n)
	}
	big := many(20)
	if n := strings.Count(written(t, big), `class="seq"`); n != MaxDiagrams {
		t.Errorf("of 400 cells %d are drawn", n)
	}
	last := &big.Cells[399]
	big.Differences = []matrix.Difference{{Row: last.Row, Col: last.Col, Expected: matrix.Relay, Got: matrix.Direct}}
	if !drawn(big)[399] {
		t.Error("a cell that is not as expected is not drawn")
	}
}

func TestOfManyRunsThoseAreListedThatStandOut(t *testing.T) {
	c := many(1).Cells[0]
	c.Way = matrix.Plain
	c.Runs[17].Error = "no such device"
	c.Runs[18].Path, c.Runs[18].Way = weft.PathRelay, matrix.Relayed
	var seeds []uint64
	for _, r := range listed(&c) {
		seeds = append(seeds, r.Seed)
	}
	if diff := cmp.Diff([]uint64{17, 18, 192, 193, 194, 195, 196, 197, 198, 199}, seeds); diff != "" {
		t.Error(diff)
	}
}
