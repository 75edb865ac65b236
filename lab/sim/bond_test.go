package sim

import (
	"context"
	"strings"
	"testing"

	"weft/lab/scenario"
)

// What ships allows for a busy machine with real programs. In virtual time there is none, and what is promised can be asked for.
var promised = map[string]string{
	"bond-two": `
expect ann bob carries 22.2mbit within 4s for 16s`, // 97 % of 24, less headers
	"bond-black-hole": `
expect ann bob silent at most 150ms for 8s through cut fibre
expect ann bob loses at most 5 for 8s through cut fibre
expect ann bob silent at most 150ms for 8s through cut cable in
expect ann bob loses at most 5 for 8s through cut cable in`,
	"bond-link-down": `
expect ann bob silent at most 50ms for 5s through down ann.fibre
expect ann bob loses at most 1 for 5s through down ann.fibre`,
	"bond-flapping": `
expect ann bob silent at most 300ms
expect ann bob loses at most 5`,
	"bond-metric": `
expect ann bob silent at most 150ms for 8s through cut fibre
expect ann bob loses at most 5 for 8s through cut fibre`,
	"bond-capacity": `
expect ann bob carries 22mbit within 1s for 8s after set fibre rate=8mbit
expect ann bob carries 29.5mbit within 1s for 7s after set fibre rate=16mbit`,
	"bond-ipv6": `
expect ann bob carries 29.5mbit within 4s for 10s`,
	"bond-relayed": `
expect ann bob carries 29mbit within 8s for 10s`,
	"bond-four": `
expect ann bob silent at most 150ms for 4s through cut fibre-a
expect ann bob loses at most 5 for 4s through cut fibre-a`,
}

func TestABondKeepsInVirtualTimeWhatIsPromisedOfIt(t *testing.T) {
	for name, more := range promised {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, text, err := scenario.Open(name)
			if err != nil {
				t.Fatal(err)
			}
			s, err := scenario.Parse(name, []byte(string(text)+strings.TrimPrefix(more, "\n")+"\n"))
			if err != nil {
				t.Fatal(err)
			}
			r, err := Backend{}.Run(context.Background(), s, scenario.Options{Seed: 7})
			if err != nil {
				t.Fatal(err)
			}
			if !r.OK {
				t.Error(told(r))
			}
			for _, f := range r.Flows {
				if f.OutOfOrder*1000 > f.Sent {
					t.Errorf("%d of %d packets came out of order, more than 0.1 %%", f.OutOfOrder, f.Sent)
				}
			}
		})
	}
}
