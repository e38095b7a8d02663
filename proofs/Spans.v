(* Spans.v - the split of key positions into spans, and their merge (schedules/lib_spans.lua).

   Below `near` a span is `near_span` positions; above, each octave [near*2^o, near*2^(o+1)) is cut
   into `per` spans. So the span of a position is a function of that position alone: neither the
   context's length nor who computes a span has a part in it. With size = near/per and
   n = near/near_span,

     start s   s*near_span                          s < n
               (per + (s-n) mod per) * size * 2^o   else, o = (s-n)/per
*)

Require Import ZArith List Bool Lia.
From Elpis Require Import Partition.
Import ListNotations.
Open Scope Z_scope.

(* Divisions stand here with their equations beside them: lia need not look for them. *)
Local Ltac Zify.zify_post_hook ::= idtac.

Section Spans.
  Variables (near near_span per : Z).
  Definition size : Z := near / per.
  Definition nears : Z := near / near_span.

  (* The numbers for which the split is one: both quotients are exact. *)
  Definition spans_valid : bool :=
    (1 <=? near_span) && (1 <=? per) && (1 <=? near) &&
    (near mod near_span =? 0) && (near mod per =? 0).

  Definition octave (position : Z) : Z := Z.log2 (position / near).
  Definition index (position : Z) : Z :=
    if position <? near then position / near_span
    else nears + octave position * per
         + (position - near * 2 ^ octave position) / (size * 2 ^ octave position).
  Definition start (span : Z) : Z :=
    if span <? nears then span * near_span
    else (per + (span - nears) mod per) * size * 2 ^ ((span - nears) / per).
  Definition width (span : Z) : Z :=
    if span <? nears then near_span else size * 2 ^ ((span - nears) / per).

  Hypothesis valid : spans_valid = true.

  Lemma valid_numbers :
    1 <= near_span /\ 1 <= per /\ 1 <= size /\ 1 <= nears /\ near = per * size /\
    near = nears * near_span.
  Proof.
    unfold spans_valid in valid. rewrite !andb_true_iff in valid.
    destruct valid as [[[[a b] c] d] e].
    rewrite Z.leb_le in a, b, c. rewrite Z.eqb_eq in d, e.
    unfold size, nears.
    pose proof (Z.div_mod near per ltac:(lia)) as of_per.
    pose proof (Z.div_mod near near_span ltac:(lia)) as of_span.
    rewrite e in of_per. rewrite d in of_span.
    set (x := near / per) in *. set (y := near / near_span) in *. clearbody x y. nia.
  Qed.

  Lemma start_next : forall span, 0 <= span -> start (span + 1) = start span + width span.
  Proof.
    destruct valid_numbers as [A [B [C [D [E F]]]]].
    intros span known. unfold start, width.
    destruct (Z.ltb_spec (span + 1) nears) as [below | above];
      destruct (Z.ltb_spec span nears) as [below' | above']; try lia.
    - replace (span + 1 - nears) with 0 by lia.
      rewrite Z.mod_0_l, Z.div_0_l, Z.pow_0_r by lia. nia.
    - set (s := span - nears). replace (span + 1 - nears) with (s + 1) by lia.
      assert (0 <= s) by lia.
      pose proof (Z.div_mod s per ltac:(lia)) as parts.
      pose proof (Z.mod_pos_bound s per ltac:(lia)) as inside.
      pose proof (Z.div_pos s per ltac:(lia) ltac:(lia)) as first.
      destruct (Z.eq_dec (s mod per + 1) per) as [last | more].
      + assert (q : (s + 1) / per = s / per + 1).
        { symmetry. apply (Z.div_unique_pos _ _ _ 0); lia. }
        assert (r : (s + 1) mod per = 0).
        { symmetry. apply (Z.mod_unique_pos _ _ (s / per + 1)); lia. }
        rewrite q, r. rewrite Z.pow_add_r by lia.
        replace (s mod per) with (per - 1) by lia. ring.
      + assert (q : (s + 1) / per = s / per).
        { symmetry. apply (Z.div_unique_pos _ _ _ (s mod per + 1)); lia. }
        assert (r : (s + 1) mod per = s mod per + 1).
        { symmetry. apply (Z.mod_unique_pos _ _ (s / per)); lia. }
        rewrite q, r. ring.
  Qed.

  Lemma width_pos : forall span, 0 <= span -> 1 <= width span.
  Proof.
    destruct valid_numbers as [A [B [C [D [E F]]]]].
    intros span known. unfold width. destruct (Z.ltb_spec span nears); [lia |].
    assert (0 < 2 ^ ((span - nears) / per))
      by (apply Z.pow_pos_nonneg; [lia | apply Z.div_pos; lia]).
    nia.
  Qed.

  Lemma start_zero : start 0 = 0.
  Proof.
    destruct valid_numbers as [A [B [C [D [E F]]]]].
    unfold start. destruct (Z.ltb_spec 0 nears); lia.
  Qed.

  Lemma start_rises : forall a b, 0 <= a -> a <= b -> start a <= start b.
  Proof.
    intros a b first order. revert b order.
    apply (Zlt_lower_bound_ind (fun b => start a <= start b)).
    intros b induction order. destruct (Z.eq_dec a b) as [<- | other]; [lia |].
    specialize (induction (b - 1) ltac:(lia)).
    pose proof (start_next (b - 1) ltac:(lia)) as next.
    replace (b - 1 + 1) with b in next by lia.
    pose proof (width_pos (b - 1) ltac:(lia)). lia.
  Qed.

  Lemma index_holds : forall position, 0 <= position ->
    0 <= index position /\ start (index position) <= position < start (index position + 1).
  Proof.
    destruct valid_numbers as [A [B [C [D [E F]]]]].
    intros position known.
    assert (here : 0 <= index position /\
      start (index position) <= position < start (index position) + width (index position)).
    { unfold index. destruct (Z.ltb_spec position near) as [close | far].
      - pose proof (Z.div_pos position near_span known ltac:(lia)).
        assert (position / near_span < nears) by (apply Z.div_lt_upper_bound; nia).
        pose proof (Z.div_mod position near_span ltac:(lia)).
        pose proof (Z.mod_pos_bound position near_span ltac:(lia)).
        unfold start, width. destruct (Z.ltb_spec (position / near_span) nears); nia.
      - assert (large : 0 < position / near) by (apply Z.div_str_pos; lia).
        assert (order : 0 <= octave position) by apply Z.log2_nonneg.
        destruct (Z.log2_spec (position / near) large) as [low high].
        fold (octave position) in low, high. set (o := octave position) in *. clearbody o.
        assert (power : 0 < 2 ^ o) by (apply Z.pow_pos_nonneg; lia).
        rewrite Z.pow_succ_r in high by exact order. remember (2 ^ o) as w eqn:is_w.
        assert (from : near * w <= position).
        { pose proof (Z.mul_div_le position near ltac:(lia)). nia. }
        assert (upto : position < near * (2 * w)).
        { pose proof (Z.div_mod position near ltac:(lia)).
          pose proof (Z.mod_pos_bound position near ltac:(lia)). nia. }
        assert (step : 1 <= size * w) by nia.
        set (x := position - near * w). set (q := x / (size * w)).
        assert (q_low : 0 <= q) by (apply Z.div_pos; unfold x; lia).
        assert (q_high : q < per) by (apply Z.div_lt_upper_bound; unfold x; nia).
        pose proof (Z.div_mod x (size * w) ltac:(lia)) as parts. fold q in parts.
        pose proof (Z.mod_pos_bound x (size * w) ltac:(lia)) as rest.
        set (s := nears + o * per + q).
        assert (which : s - nears = per * o + q) by (unfold s; lia).
        assert (eo : (s - nears) / per = o) by (symmetry; apply (Z.div_unique_pos _ _ _ q); lia).
        assert (eq : (s - nears) mod per = q) by (symmetry; apply (Z.mod_unique_pos _ _ o); lia).
        assert (beyond : 0 <= o * per) by nia.
        unfold start, width. destruct (Z.ltb_spec s nears) as [no | _]; [unfold s in no; lia |].
        rewrite eo, eq, <- is_w. split; [unfold s; lia |].
        assert (is_x : x = position - near * w) by reflexivity. clearbody q x.
        replace ((per + q) * size * w) with (near * w + size * w * q) by (rewrite E; ring). lia. }
    destruct here as [low inside]. split; [exact low |].
    rewrite start_next by exact low. lia.
  Qed.

  (* Law spans: every key position lies in one span, and in no other; spans ascend, each begins
     where the one before it ends, and which span a position has depends on the position alone.
     Mirrors: attn_stride, attn_split. *)
  Theorem spans : forall position, 0 <= position ->
    0 <= index position /\
    start (index position) <= position < start (index position + 1) /\
    (forall span, 0 <= span -> start span <= position < start (span + 1) ->
       span = index position).
  Proof.
    intros position known. destruct (index_holds position known) as [low inside].
    split; [exact low |]. split; [exact inside |].
    intros span first within.
    destruct (Z.lt_trichotomy span (index position)) as [less | [same | more]]; [| exact same |].
    - pose proof (start_rises (span + 1) (index position) ltac:(lia) ltac:(lia)). lia.
    - pose proof (start_rises (index position + 1) span ltac:(lia) ltac:(lia)). lia.
  Qed.

  (* Law spans_rises: a later position has no earlier span, so a row at position p reads the slots
     0 .. index p, ascending, and these hold the keys up to p.
     Mirrors: attn_stride. *)
  Theorem spans_rises : forall p q, 0 <= p -> p <= q -> index p <= index q.
  Proof.
    intros p q first order.
    destruct (index_holds p first) as [_ at_p].
    destruct (index_holds q ltac:(lia)) as [low at_q].
    destruct (Z.le_gt_cases (index p) (index q)); [assumption |].
    pose proof (start_rises (index q + 1) (index p) ltac:(lia) ltac:(lia)). lia.
  Qed.

  (* Spans begin at multiples of a tile where the numbers do: tiles never cross spans. *)
  Lemma start_aligned : forall tile span, 1 <= tile -> near_span mod tile = 0 ->
    size mod tile = 0 ->
    0 <= span -> start span mod tile = 0.
  Proof.
    intros tile span some of_near of_size known. unfold start.
    destruct (span <? nears).
    - rewrite Z.mul_comm. rewrite Z.mul_mod, of_near by lia.
      rewrite Z.mul_0_l. apply Z.mod_0_l. lia.
    - rewrite (Z.mul_comm _ size), <- Z.mul_assoc, Z.mul_mod, of_size by lia.
      rewrite Z.mul_0_l. apply Z.mod_0_l. lia.
  Qed.
End Spans.

(* What a schedule exports of its spans. *)
Definition spans_decided (near near_span per tile context count : Z) : bool :=
  spans_valid near near_span per && (1 <=? tile) && (near_span mod tile =? 0) &&
  (size near per mod tile =? 0) && (1 <=? context) &&
  (index near near_span per (context - 1) + 1 =? count).

(* All that a launch over `count` spans must know: no position of the context is left out, none is
   in two spans, and a tile lies in one span. *)
Lemma spans_instance : forall near near_span per tile context count,
  spans_decided near near_span per tile context count = true ->
  forall position, 0 <= position < context ->
  exists span, 0 <= span < count /\
    start near near_span per span <= position < start near near_span per (span + 1) /\
    (start near near_span per span) mod tile = 0 /\
    (forall other, 0 <= other -> start near near_span per other <= position
       < start near near_span per (other + 1) -> other = span).
Proof.
  intros near near_span per tile context count decided position range.
  unfold spans_decided in decided. rewrite !andb_true_iff in decided.
  destruct decided as [[[[[valid some] of_near] of_size] _] whole].
  rewrite Z.leb_le in some. rewrite Z.eqb_eq in of_near, of_size, whole.
  destruct (spans near near_span per valid position ltac:(lia)) as [low [inside unique]].
  exists (index near near_span per position).
  pose proof (spans_rises near near_span per valid position (context - 1) ltac:(lia) ltac:(lia)).
  split; [lia |]. split; [exact inside |]. split; [| exact unique].
  apply start_aligned; assumption.
Qed.

(* Law merge: a row's merged result is one left fold over its spans, ascending. Whoever computes a
   span, and wherever the fold is cut and taken up again, the result is the same term.
   Mirrors: attn_stride, attn_chunk. No hypotheses. *)
Theorem merge : forall (state slot : Type) (join : state -> slot -> state) (empty : state)
  (pieces : list (list slot)),
  fold_left join (concat pieces) empty =
  fold_left (fun merged piece => fold_left join piece merged) pieces empty.
Proof.
  intros state slot join empty pieces. revert empty.
  induction pieces as [| piece rest same]; intro empty; simpl; [reflexivity |].
  rewrite fold_left_app. apply same.
Qed.

Example spans_rises_used := spans_rises 2048 64 16 eq_refl 2047 262143 ltac:(lia) ltac:(lia).

(* Octaves of which a span is no whole part leave positions out: the numbers matter. *)
Example spans_of_odd_parts : spans_valid 2048 64 15 = false.
Proof. reflexivity. Qed.
Example spans_holes : index 2048 64 15 2040 = 31 /\ start 2048 64 15 32 = 2040.
Proof. split; reflexivity. Qed.
