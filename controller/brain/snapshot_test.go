package brain

import (
	"reflect"
	"strings"
	"testing"
	"unsafe"
)

// Another goroutine looks ahead in a snapshot while the brain goes on, so neither may have what
// the other changes. Values of other packages (configs, plans, bucket maps), inputs and
// agreements are never changed once they are made.
func TestASnapshotSharesNothingThatChanges(t *testing.T) {
	w := servingWeb(t)
	c := comparison{t: t}
	c.compare("State", reflect.ValueOf(w.state).Elem(), func() reflect.Value {
		return reflect.ValueOf(w.state.Snapshot().state).Elem()
	})
	if c.compared < 20 {
		t.Errorf("only %d maps and pointers were compared", c.compared)
	}
}

type comparison struct {
	t        *testing.T
	compared int
}

// compare what is found at one place of the state with the same place of a snapshot, which is
// taken after that place was given a value.
func (c *comparison) compare(path string, ours reflect.Value, snapshot func() reflect.Value) {
	switch ours.Kind() {
	case reflect.Struct:
		for i := range ours.NumField() {
			c.compare(path+"."+ours.Type().Field(i).Name, settable(ours.Field(i)), func() reflect.Value { return snapshot().Field(i) })
		}
	case reflect.Map:
		if ours.Len() == 0 {
			ours.Set(reflect.MakeMap(ours.Type()))
			ours.SetMapIndex(reflect.Zero(ours.Type().Key()), newValue(ours.Type().Elem()))
		}
		c.differ(path, ours, snapshot())
		for _, key := range ours.MapKeys() {
			if isOwn(ours.Type().Elem()) {
				c.differ(path+"[]", ours.MapIndex(key), snapshot().MapIndex(key))
			}
		}
	case reflect.Pointer:
		if isOwn(ours.Type()) {
			ours.Set(newValue(ours.Type()))
			c.differ(path, ours, snapshot())
		}
	}
}

func (c *comparison) differ(path string, ours, theirs reflect.Value) {
	c.compared++
	if ours.Pointer() == theirs.Pointer() {
		c.t.Errorf("a snapshot shares %s (%v) with the state", path, ours.Type())
	}
}

// isOwn: a pointer to what the brain itself changes.
func isOwn(what reflect.Type) bool {
	if what.Kind() != reflect.Pointer || !strings.HasSuffix(what.Elem().PkgPath(), "/brain") {
		return false
	}
	return what.Elem() != reflect.TypeFor[inputs]() && what.Elem() != reflect.TypeFor[Agreement]()
}

func newValue(what reflect.Type) reflect.Value {
	if what.Kind() == reflect.Pointer {
		return reflect.New(what.Elem())
	}
	return reflect.Zero(what)
}

// settable is the same field without the protection of its lower-case name.
func settable(field reflect.Value) reflect.Value {
	return reflect.NewAt(field.Type(), unsafe.Pointer(field.UnsafeAddr())).Elem()
}
