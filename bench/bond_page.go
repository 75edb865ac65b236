package bench

import (
	"bytes"
	_ "embed"
	"fmt"
	"html"
	"html/template"
	"math"
	"slices"
	"strings"
	"sync"
)

//go:embed bond_page.html
var bondPageText string

var bondPage = sync.OnceValue(func() *template.Template { return template.Must(template.New("bond").Parse(bondPageText)) })

// bondView is what the page is made of.
type bondView struct {
	*BondReport
	Reached, Wanted int
	Minutes         float64
	Goals           []goalView
	Efficiency      template.HTML
	Cases           []caseView
}

type goalView struct {
	BondGoal
	Want, Verdict, Class, MedianText, WorstText, All string
}

type caseView struct {
	Name, About string
	Charts      []chartView
	Runs        []runView
}

type chartView struct {
	Picture template.HTML
	Caption string
}

type runView struct {
	*BondRun
	Who, Over, What, BusyText string
}

// page is the report as one HTML document that needs nothing else: styles and pictures are in it, and no script.
func (r *BondReport) page() ([]byte, error) {
	v := bondView{BondReport: r, Minutes: r.Seconds / 60, Efficiency: r.efficiencies()}
	for _, g := range r.Goals {
		x := goalView{BondGoal: g, Want: g.wanted(), Verdict: g.verdict(), Class: "missed", MedianText: "-", WorstText: "-"}
		if g.Reached || g.Told {
			x.Class = "reached"
		}
		if !g.Told {
			v.Wanted++
			if g.Reached {
				v.Reached++
			}
		}
		if len(g.Values) > 0 {
			x.MedianText, x.WorstText = figure(g.Median, g.Unit), figure(g.Worst, g.Unit)
		}
		var all []string
		for _, f := range g.Values[:min(len(g.Values), maxValues)] {
			all = append(all, figure(f, ""))
		}
		x.All = strings.Join(all, " ")
		if n := len(g.Values) - maxValues; n > 0 {
			x.All += fmt.Sprintf(" and %d more", n)
		}
		v.Goals = append(v.Goals, x)
	}
	for _, c := range bondCases {
		if x := r.caseView(c); len(x.Runs) > 0 {
			v.Cases = append(v.Cases, x)
		}
	}
	var b bytes.Buffer
	if err := bondPage().Execute(&b, v); err != nil {
		return nil, fmt.Errorf("writing the page: %w", err)
	}
	return b.Bytes(), nil
}

// maxValues is how many values of a goal are listed.
const maxValues = 12

// figure writes a number with as many places as it is worth.
func figure(v float64, unit string) string {
	s := fmt.Sprintf("%.3g", v)
	if math.Abs(v) >= 100 {
		s = fmt.Sprintf("%.0f", v)
	}
	if unit != "" {
		s += " " + unit
	}
	return s
}

// caseView shows the runs of a case. Pictures are of the run in the middle, and of the worst where it stands out.
func (r *BondReport) caseView(c *bondCase) caseView {
	v := caseView{Name: c.name, About: c.about}
	for _, x := range r.Runs {
		if x.Case != c.name {
			continue
		}
		who := string(x.Subject)
		if x.Mode != "" {
			who += ", " + x.Mode
		}
		_, what, _ := strings.Cut(x.String(), fmt.Sprintf("round %d: ", x.Round))
		if _, rest, ok := strings.Cut(what, ": "); ok {
			what = rest
		}
		busy := fmt.Sprintf("%.0f %%%s", x.Busy*100, x.stolenText())
		if x.Superseded {
			busy += ": does not count, the batch was measured again"
		}
		v.Runs = append(v.Runs, runView{BondRun: x, Who: who, Over: linksText(x.Links), What: what, BusyText: busy})
	}
	for _, group := range r.groups(c) {
		x := group[len(group)/2]
		if len(x.Curve) == 0 {
			continue
		}
		caption := fmt.Sprintf("%s, %s", x.Subject, x.Direction)
		if x.Mode != "" {
			caption += ", " + x.Mode
		}
		if len(x.Events) > 0 {
			caption += fmt.Sprintf(", %s", x.Events[0].What)
		}
		caption += fmt.Sprintf(", %s inside: run %d, %.1f Mbit/s", x.Control, x.Round, x.Mbit)
		v.Charts = append(v.Charts, chartView{r.overTime(x), caption})
		if len(x.Latency) > 0 {
			worst := slices.MaxFunc(group, func(a, b *BondRun) int { return int(a.StallMS - b.StallMS) })
			v.Charts = append(v.Charts, chartView{latencyOverTime(worst), fmt.Sprintf("the longest that a datagram took, %s, %s: run %d, the worst", worst.Subject, worst.Direction, worst.Round)})
		}
	}
	return v
}

// groups are the runs of all links of a case that did the same, by what they carried.
func (r *BondReport) groups(c *bondCase) (list [][]*BondRun) {
	at := map[string]int{}
	for _, x := range r.runs(func(x *BondRun) bool { return x.Case == c.name && (x.Subject == bonded || x.Subject == mptcp) }) {
		key := fmt.Sprint(x.Subject, x.Direction, x.Control, x.Mode, x.UDP != nil)
		if len(x.Events) > 0 {
			key += string(x.Events[0].What)
		}
		if _, ok := at[key]; !ok {
			at[key] = len(list)
			list = append(list, nil)
		}
		list[at[key]] = append(list[at[key]], x)
	}
	for _, g := range list {
		slices.SortStableFunc(g, func(a, b *BondRun) int { return int(1000 * (a.Mbit - b.Mbit)) })
	}
	return list
}

func linksText(links []BondLink) string {
	if len(links) > 2 && links[0] == links[len(links)-1] {
		return fmt.Sprintf("%d x %s", len(links), links[0])
	}
	var names []string
	for _, l := range links {
		names = append(names, l.String())
	}
	return strings.Join(names, " + ")
}

// overTime is what arrived, and what was on each link, over time; dotted, what each link carries alone, added up.
func (r *BondReport) overTime(x *BondRun) template.HTML {
	p := plot{about: "Mbit/s over seconds", seconds: float64(len(x.Curve)) * x.Step, from: x.Warm, marks: x.Events}
	for k, link := range x.ByLink {
		values := make([]float64, len(link))
		for i, v := range link {
			values[i] = float64(v) / 1000
		}
		p.add(fmt.Sprintf("l%d", k%4), values)
	}
	p.add("all", x.Curve)
	subject := single
	if x.Subject == mptcp {
		subject = plainTCP
	}
	if x.UDP == nil && len(x.Events) == 0 {
		if sum := r.sumAlone(subject, x.Links, x.Direction, x.Control); sum > 0 {
			p.level = sum
		}
	}
	return p.draw()
}

func latencyOverTime(x *BondRun) template.HTML {
	p := plot{about: "ms over seconds", seconds: float64(len(x.Latency)) * x.Step, from: x.Warm, marks: x.Events}
	p.add("all", x.Latency)
	return p.draw()
}

// A plot is curves over time.
type plot struct {
	about         string
	seconds, from float64 // from: what is before does not count
	lines         []plotLine
	level         float64 // to compare with; 0: none
	marks         []BondHappens
}

type plotLine struct {
	class  string
	values []float64
}

func (p *plot) add(class string, values []float64) {
	p.lines = append(p.lines, plotLine{class, values})
}

// maxMarks is how many events are marked one by one.
const maxMarks = 12

func (p *plot) draw() template.HTML {
	const width, height, left, right, top, bottom = 560, 210, 40, 10, 16, 30
	most := p.level
	for _, l := range p.lines {
		most = max(most, slices.Max(append([]float64{0}, l.values...)))
	}
	step := niceStep(most)
	most = max(step, math.Ceil(most/step)*step)
	x := func(t float64) float64 { return left + t/max(p.seconds, 0.1)*(width-left-right) }
	y := func(v float64) float64 { return top + (1-v/most)*(height-top-bottom) }
	var b strings.Builder
	fmt.Fprintf(&b, `<svg role="img" aria-label="%s" viewBox="0 0 %d %d" width="%d" height="%d">`, html.EscapeString(p.about), width, height, width, height)
	for v := 0.0; v <= most*1.001; v += step {
		fmt.Fprintf(&b, `<path class="grid" d="M%d %.1fH%d"/><text class="tick end" x="%d" y="%.1f">%g</text>`, left, y(v), width-right, left-5, y(v)+4, v)
	}
	every := niceStep(p.seconds)
	for t := 0.0; t <= p.seconds+0.01; t += every {
		fmt.Fprintf(&b, `<text class="tick mid" x="%.1f" y="%d">%g s</text>`, x(t), height-bottom+15, t)
	}
	fmt.Fprintf(&b, `<rect x="%.1f" y="%d" width="%.1f" height="%d" fill="currentColor" opacity=".05"/>`, x(0), top, x(p.from)-x(0), height-top-bottom)
	if p.level > 0 {
		fmt.Fprintf(&b, `<path class="line other" d="M%d %.1fH%d"/>`, left, y(p.level), width-right)
	}
	for i, m := range p.marks {
		if i < maxMarks {
			fmt.Fprintf(&b, `<path class="mark" d="M%.1f %dV%d"/><text class="name" x="%.1f" y="%d">%s %d</text>`, x(m.At), top, height-bottom, x(m.At)+2, top-4, html.EscapeString(string(m.What)), m.Link)
		}
	}
	for _, l := range p.lines {
		if len(l.values) == 0 {
			continue
		}
		fmt.Fprintf(&b, `<path class="line %s" d="`, l.class)
		for i, v := range l.values {
			fmt.Fprintf(&b, "%c%.1f %.1f", "ML"[min(i, 1)], x((float64(i)+0.5)/float64(len(l.values))*p.seconds), y(v))
		}
		b.WriteString(`"/>`)
	}
	fmt.Fprintf(&b, `<text class="tick mid" x="%d" y="%d">%s</text></svg>`, (left+width)/2, height-3, html.EscapeString(p.about))
	return template.HTML(b.String()) // made of numbers and our own words
}

// niceStep divides a span into some five steps of 1, 2 or 5 times a power of ten.
func niceStep(span float64) float64 {
	if !(span > 0) {
		return 1
	}
	raw := span / 5
	power := math.Pow(10, math.Floor(math.Log10(raw)))
	for _, f := range []float64{1, 2, 5} {
		if raw <= f*power {
			return f * power
		}
	}
	return 10 * power
}

// efficiencies are all cases of throughput in one picture.
func (r *BondReport) efficiencies() template.HTML {
	type row struct {
		name          string
		median, worst float64
		least, other  float64
	}
	var rows []row
	for _, c := range bondCases {
		for _, g := range r.Goals {
			if g.Case != c.name || g.Name != efficiencyGoal || len(g.Values) == 0 {
				continue
			}
			out := g.Direction == "out"
			x := row{name: fmt.Sprintf("%s, %s, %s", c.name, g.Direction, g.Control), median: g.Median, worst: g.Worst, least: g.Least}
			if plain := r.sumAlone(plainTCP, c.links, g.Direction, g.Control); plain > 0 {
				var v []float64
				for _, m := range r.runs(of(c, mptcp, out, g.Control)) {
					v = append(v, m.Mbit/plain)
				}
				slices.Sort(v)
				x.other = quantile(v, 0.5)
			}
			rows = append(rows, x)
		}
	}
	if len(rows) == 0 {
		return ""
	}
	const width, left, right, pitch, top = 860, 190, 30, 20, 24
	height := top + pitch*len(rows) + 24
	least := 0.8
	for _, x := range rows {
		least = min(least, x.worst)
		if x.other > 0 {
			least = min(least, x.other)
		}
	}
	from := math.Floor(least*10) / 10
	const to = 1.05
	at := func(v float64) float64 { return left + (min(v, to)-from)/(to-from)*(width-left-right) }
	var b strings.Builder
	fmt.Fprintf(&b, `<svg role="img" aria-label="Efficiency by case" viewBox="0 0 %d %d" width="%d" height="%d">`, width, height, width, height)
	for v := from; v <= to+0.001; v += niceStep(to-from) / 2 {
		fmt.Fprintf(&b, `<path class="grid" d="M%.1f %dV%d"/><text class="tick mid" x="%.1f" y="%d">%.0f %%</text>`, at(v), top-6, height-20, at(v), height-6, v*100)
	}
	for i, x := range rows {
		y := top + pitch*i + 6
		fmt.Fprintf(&b, `<text class="end" x="%d" y="%d">%s</text><path class="rail" d="M%d %dH%d"/>`, left-8, y+4, html.EscapeString(x.name), left, y, width-right)
		fmt.Fprintf(&b, `<path class="line wanted" d="M%.1f %dV%d"/>`, at(x.least), y-8, y+8)
		if x.other > 0 {
			fmt.Fprintf(&b, `<path class="dot mptcp" d="M%.1f %dl5 5l-5 5l-5 -5z"/>`, at(x.other), y-5)
		}
		fmt.Fprintf(&b, `<circle class="dot worst" cx="%.1f" cy="%d" r="4.5"/><circle class="dot" cx="%.1f" cy="%d" r="4.5"/>`, at(x.worst), y, at(x.median), y)
	}
	b.WriteString(`</svg>`)
	return template.HTML(b.String()) // made of numbers and our own words
}
