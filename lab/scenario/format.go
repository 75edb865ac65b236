package scenario

import (
	"bytes"
	"fmt"
	"strings"
)

// Format writes a scenario in the text's usual order and spelling. What it writes of a scenario that Parse made,
// Parse reads as the same scenario; lines apart.
func Format(s Scenario) []byte {
	var b bytes.Buffer
	section := func(lines []string) {
		if len(lines) > 0 && b.Len() > 0 {
			b.WriteByte('\n')
		}
		for _, l := range lines {
			b.WriteString(l + "\n")
		}
	}
	var head, routers, hosts, said, runs, flows, events, expect []string
	for line := range strings.Lines(s.About) {
		head = append(head, "about "+strings.TrimRight(line, "\n"))
	}
	if s.Limit > 0 {
		head = append(head, "limit "+formatDuration(s.Limit))
	}
	for _, r := range s.Routers {
		routers = append(routers, declaration("router", r.Name, routerFields.format(&r)))
	}
	for _, l := range s.Lans {
		routers = append(routers, declaration("lan", l.Name, lanFields.format(&l)))
	}
	if s.Policy != nil {
		for _, line := range s.Policy.Lines {
			said = append(said, "policy "+line)
		}
	}
	for _, c := range s.Commands {
		said = append(said, c.String())
	}
	for _, h := range s.Hosts {
		hosts = append(hosts, declaration(h.Role.String(), h.Name, hostFields.format(&h)))
		for _, c := range h.Run {
			runs = append(runs, "run "+h.Name+" "+c)
		}
	}
	for _, f := range s.Flows {
		flows = append(flows, declaration("flow", f.From+" "+f.To, flowFields.format(&f)))
	}
	for _, e := range s.Events {
		events = append(events, fmt.Sprintf("at %s %s", e.when(), e))
	}
	for _, p := range s.Probes {
		expect = append(expect, fmt.Sprintf("probe %s %s %s", p.A, p.B, p.Command))
	}
	for _, e := range s.Expect {
		expect = append(expect, "expect "+e.String())
	}
	for _, lines := range [][]string{head, routers, hosts, said, runs, flows, events, expect} {
		section(lines)
	}
	return b.Bytes()
}

func declaration(kind, name string, words []string) string {
	return strings.Join(append([]string{kind, name}, words...), " ")
}
