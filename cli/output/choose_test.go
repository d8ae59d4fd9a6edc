package output

import (
	"bytes"
	"reflect"
	"strings"
	"testing"

	"github.com/guideway/guideway/cli/commandline"
)

func backendsListing() Listing {
	values := []string{"a", "b", "c", "d"}
	return Listing{
		Value: values, Pick: func(rows []int) any { return Picked(values, rows) }, IsTrouble: func(row int) bool { return row%2 == 1 }, Named: 2,
		Header: []string{"SERVICE", "BACKEND", "SINCE", "NEW CONNECTIONS"},
		Rows: [][]string{
			{"web", "web-1", "1m0s", "9"},
			{"web", "web-2", "59s", "-"},
			{"dns", "dns-1", "2h0m0s", "10"},
			{"dns", "odd[1", "1s", "100"},
		},
	}
}

func TestRowsAreChosen(t *testing.T) {
	for name, c := range map[string]struct {
		choice Choice
		want   []string
	}{
		"all":               {Choice{}, []string{"a", "b", "c", "d"}},
		"a name":            {Choice{Patterns: []string{"web-2"}}, []string{"b"}},
		"a service":         {Choice{Patterns: []string{"web"}}, []string{"a", "b"}},
		"a pattern":         {Choice{Patterns: []string{"*-1", "web-2"}}, []string{"a", "b", "c"}},
		"no pattern":        {Choice{Patterns: []string{"odd[1"}}, []string{"d"}},
		"trouble":           {Choice{OnlyTrouble: true}, []string{"b", "d"}},
		"by number":         {Choice{SortBy: "new-connections"}, []string{"d", "c", "a", "b"}},
		"by time":           {Choice{SortBy: "Since"}, []string{"c", "a", "b", "d"}},
		"by name":           {Choice{SortBy: "BACKEND"}, []string{"c", "d", "a", "b"}},
		"the first of them": {Choice{SortBy: "new connections", Max: 2}, []string{"d", "c"}},
	} {
		found, err := backendsListing().Choose(c.choice)
		if err != nil || !reflect.DeepEqual(found.Value, c.want) || len(found.Rows) != len(c.want) {
			t.Errorf("%s: %v %v, want %v", name, err, found.Value, c.want)
		}
	}
}

func TestAChoiceOfNothing(t *testing.T) {
	if _, err := backendsListing().Choose(Choice{Patterns: []string{"web-1", "web-9*"}}); err == nil || !strings.Contains(err.Error(), `nothing here has the name "web-9*"`) {
		t.Error(err)
	}
	if _, err := backendsListing().Choose(Choice{SortBy: "colour"}); commandline.ExitCode(err) != commandline.ExitUsage || !strings.Contains(err.Error(), "service, backend, since, new connections") {
		t.Error(err)
	}
	well := backendsListing()
	well.IsTrouble = func(int) bool { return false }
	found, err := well.Choose(Choice{OnlyTrouble: true})
	var out bytes.Buffer
	if err != nil || found.Print(&out, "table") != nil || out.String() != "no trouble: 4 rows\n" {
		t.Errorf("%v %q", err, out.String())
	}
	limited, err := backendsListing().Choose(Choice{Max: 3})
	out.Reset()
	if err != nil || limited.Print(&out, "table") != nil || !strings.HasSuffix(out.String(), "\n1 more: --limit 0 shows all\n") {
		t.Errorf("%v %q", err, out.String())
	}
}

func TestRowsThatAreAlikeAreOne(t *testing.T) {
	list := Listing{Alike: []int{0}, Rows: [][]string{{"a", "x"}, {"b", "y"}, {"c", "x"}, {"d", "x"}, {"e", "x"}, {"f", "y"}, {"g", "z"}}}
	want := [][]string{{"a and 3 more", "x"}, {"b", "y"}, {"f", "y"}}
	if found := list.Folded(3); !reflect.DeepEqual(found.Rows, want) || !reflect.DeepEqual(found.Notes, []string{"(1 row more: --all shows them)"}) {
		t.Errorf("%v %v", found.Rows, found.Notes)
	}
}

// What a server answered may have any bytes.
func TestACellIsNoOrderToTheTerminal(t *testing.T) {
	var out bytes.Buffer
	list := Listing{Header: []string{"REASON"}, Rows: [][]string{{"a\x1b]0;title\x07b\nc\td\u009b2J é"}}}
	if err := list.Print(&out, "table"); err != nil || out.String() != "REASON\na ]0;title b c d 2J é\n" {
		t.Errorf("%v %q", err, out.String())
	}
}
